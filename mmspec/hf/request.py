"""A call of `generate`, for models whose tokens are not single ids and whose adapters take over the whole call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mmspec.decoding.step import OnStats, OnStep
from mmspec.heads.head import Head
from mmspec.recipes import Recipe


@dataclass(frozen=True)
class GenerateRequest:
    """The arguments of a call, as transformers prepared them, and those of `mmspec.generate`.

    Attributes:
        model: The model, without the wrapper of `torch.compile`.
        input_ids: The prompts, in the form that the model's own generate uses.
        processors: The logits processors.
        criteria: The stopping criteria.
        config: The prepared `GenerationConfig`.
        inputs: All other inputs of the model.
        recipe: How to decode, as in `mmspec.generate`.
        seed: One seed, or one per row, as in `mmspec.generate`.
        draft_model: The draft model, without the wrapper of `torch.compile`, or None.
        on_step: Called after every target call, as in `mmspec.generate`.
        heads: Draft heads by kind.
        given: The keywords of the caller, as in `mmspec.generate`.
        on_stats: Called with the statistics at the end, as in `mmspec.generate`.
    """

    model: Any
    input_ids: Tensor
    processors: Any
    criteria: Any
    config: Any
    inputs: Mapping[str, Any]
    recipe: Recipe
    seed: int | Sequence[int] | None
    draft_model: Any
    on_step: OnStep | None
    heads: Mapping[str, Head] = field(default_factory=dict)
    given: Collection[str] | None = None
    on_stats: OnStats | None = None


def unwrap(model: Any) -> Any:
    """The model inside `torch.compile(model)`, which returns a module of another class."""
    return getattr(model, "_orig_mod", model)
