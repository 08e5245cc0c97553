"""The progress bars of one generation, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from mmspec.decoding.batch import Step


@contextmanager
def token_bar(quiet: bool) -> Iterator[Callable[[Step], None] | None]:
    """Yield an `on_step` that shows tokens, tokens per second and tokens per target call and row.

    Args:
        quiet: Show nothing. Nothing is shown either when stderr is not a terminal; None is yielded then, so that the
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


@contextmanager
def audio_bar(quiet: bool, seconds: float) -> Iterator[Callable[[Step], None] | None]:
    """Yield an `on_step` that shows seconds of sound, and how many of them are made in one; otherwise as `token_bar`.

    Args:
        seconds: Of sound that a token stands for.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return

    from tqdm import tqdm

    start, done, latest = time.perf_counter(), 0, 0
    with tqdm(unit=" s of sound", file=sys.stderr, bar_format="{n:.1f}{unit} [{elapsed}, {postfix}]") as bar:

        def on_step(step: Step) -> None:
            nonlocal done, latest
            # A stream decodes one sentence after the other, and each starts to count anew.
            done += latest if step.committed < latest else 0
            latest = step.committed
            made = (done + latest) * seconds
            adaptive_window = made / (time.perf_counter() - start)
            calls = f"{step.committed / (step.nfe * len(step.tokens)):.2f} tokens per call"
            bar.set_postfix_str(f"{adaptive_window:.1f} times as fast as it sounds, {calls}", refresh=False)
            bar.update(made - bar.n)

        yield on_step
