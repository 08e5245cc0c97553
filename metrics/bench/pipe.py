"""What a pipeline must be for a benchmark or an evaluation to call it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from mmspec.decoding.loop import OnStep
from mmspec.decoding.stats import Stats
from mmspec.recipes import Recipe


class Output(Protocol):
    """What a call gives: `stats`, and either `images` or `audio`."""

    @property
    def stats(self) -> Stats: ...


class Pipe(Protocol):
    """The part of a pipeline's call that is used."""

    def __call__(
        self,
        prompts: list[str],
        /,
        *,
        recipe: Recipe,
        seed: int | Sequence[int],
        temperature: float | None,
        top_k: int | None,
        top_p: float | None,
        guidance_scale: float | None,
        measure_entropy: bool,
        on_step: OnStep | None = None,
    ) -> Any:
        """An `Output`; row i is of prompt i and, of several seeds, of seed i."""
        ...
