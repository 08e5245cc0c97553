"""`python -m mmspec` and the script `mmspec`."""

from __future__ import annotations

import sys


def main() -> int:
    """Runs the command; an interrupt while its modules are imported ends it as quietly as a later one.

    Returns:
        The exit status, see `mmspec.cli.app.main`.
    """
    try:
        from mmspec.cli import app
    except KeyboardInterrupt:
        if sys.stderr is not None:
            print("mmspec: interrupted", file=sys.stderr)
        return 130
    return app.main()


if __name__ == "__main__":
    sys.exit(main())
