"""What a picture pipeline must be for a benchmark or an evaluation to call it."""

from __future__ import annotations

from typing import Any, Protocol

from mmspec.recipes import Recipe
from mmspec.stats import Stats


class Output(Protocol):
    @property
    def images(self) -> Any: ...
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
        seed: int,
        temperature: float | None,
        top_k: int | None,
        top_p: float | None,
        guidance_scale: float | None,
        measure_entropy: bool,
    ) -> Output: ...
