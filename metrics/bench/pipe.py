"""The interface of a pipeline that a benchmark or an evaluation can call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from mmspec.decoding.stats import Stats
from mmspec.decoding.step import OnStep
from mmspec.metrics.metric import Kind
from mmspec.pipeline import makes_audio
from mmspec.recipes import Recipe


class Output(Protocol):
    """The output of a call: `stats`, and either `images` or `audio`."""

    @property
    def stats(self) -> Stats: ...


class Pipe(Protocol):
    """The part of a pipeline's call that is used, with those sampling arguments that are given."""

    def __call__(
        self,
        prompts: list[str],
        /,
        *,
        recipe: Recipe,
        seed: int | Sequence[int],
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        typical_p: float | None = None,
        guidance_scale: float | None = None,
        measure_entropy: bool = False,
        on_step: OnStep | None = None,
    ) -> Any:
        """Returns an `Output`; row i belongs to prompt i and, if there are several seeds, to seed i."""
        ...


def kind_of(pipe: Any) -> Kind | None:
    """What a pipeline generates; None for one of another package that is neither like diffusers' nor like ours."""
    if makes_audio(pipe):
        return "audio"
    return "image" if hasattr(pipe, "set_progress_bar_config") else None
