"""Progress bars of one generation, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from mmspec.decoding.step import Step


@contextmanager
def token_bar(quiet: bool) -> Iterator[Callable[[Step], None] | None]:
    """Yields an `on_step` that shows tokens, tokens per second, and tokens per target call and row.

    Args:
        quiet: Whether to show nothing. Without a bar, here or because stderr is not a terminal, None is yielded, so
            that the loop does no work for it.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return

    from tqdm import tqdm

    with tqdm(unit=" tokens", file=sys.stderr) as bar:

        def on_step(step: Step) -> None:
            bar.total = step.total
            bar.set_postfix_str(
                f"{step.committed / (step.target_calls * len(step.tokens)):.2f} tokens per call", refresh=False
            )
            bar.update(step.committed - bar.n)

        yield on_step


@contextmanager
def audio_bar(quiet: bool, seconds: float) -> Iterator[Callable[[Step], None] | None]:
    """Yields an `on_step` that shows seconds of audio, the speed relative to real time, and tokens per target call.

    Args:
        quiet: Whether to show nothing, and yield None; see `token_bar`.
        seconds: Seconds of audio per token.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return

    from tqdm import tqdm

    start, done, latest = time.perf_counter(), 0, 0
    with tqdm(unit=" s of audio", file=sys.stderr, bar_format="{n:.1f}{unit} [{elapsed}, {postfix}]") as bar:

        def on_step(step: Step) -> None:
            nonlocal done, latest
            # A stream decodes one sentence after the other, and each counts its tokens from 0.
            done += latest if step.committed < latest else 0
            latest = step.committed
            made = (done + latest) * seconds
            speed = made / (time.perf_counter() - start)
            calls = f"{step.committed / (step.target_calls * len(step.tokens)):.2f} tokens per call"
            bar.set_postfix_str(f"{speed:.1f}x real time, {calls}", refresh=False)
            bar.update(made - bar.n)

        yield on_step
