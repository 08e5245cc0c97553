"""The progress bar of one generation, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from mmspec.rows import Step


@contextmanager
def token_bar(quiet: bool) -> Iterator[Callable[[Step], None] | None]:
    """Yield an `on_step` that shows tokens, tokens per second and tokens per target call and row.

    **Arguments:**

    - `quiet`: show nothing. Nothing is shown either when stderr is not a terminal; None is yielded then, so that the
      loop does no work for an observer that is not there.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return

    from tqdm import tqdm

    with tqdm(unit=" tokens", file=sys.stderr) as bar:

        def on_step(step: Step) -> None:
            bar.total = step.total
            bar.set_postfix_str(f"{step.committed / (step.nfe * len(step.tokens)):.2f} tokens per call", refresh=False)
            bar.update(step.committed - bar.n)

        yield on_step
