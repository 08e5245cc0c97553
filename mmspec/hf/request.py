"""A call of `generate` for models whose tokens are no plain numbers, and which therefore answer it themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mmspec.decoding.loop import OnStep
from mmspec.recipes import Recipe


@dataclass(frozen=True)
class GenerateRequest:
    """What transformers made of the arguments, and those of `mmspec.generate`.

    Attributes:
        model: As it is inside `torch.compile`.
        draft_model: Likewise, or None.
        input_ids: As the model's own generate has them.
        processors: The logits processors.
        criteria: The stopping criteria.
        config: The prepared `GenerationConfig`.
        inputs: What else the model was given.
        recipe: See `mmspec.generate`.
        seed: See `mmspec.generate`.
        on_step: See `mmspec.generate`.
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


def unwrap(model: Any) -> Any:
    """The model inside `torch.compile(model)`, which returns a module of another class."""
    return getattr(model, "_orig_mod", model)
