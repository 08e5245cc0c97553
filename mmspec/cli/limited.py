"""A remark where there are fewer prompts than `--limit` allows."""

from __future__ import annotations

import sys


def say_limit(limit: int | None, count: int) -> None:
    """Prints to stderr how many prompts there are, if fewer than the limit."""
    if limit is not None and count < limit:
        print(f"mmspec: --limit {limit:,}: there are {count:,} prompts, and all are used", file=sys.stderr)
