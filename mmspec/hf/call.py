"""A call of `generate` for models whose tokens are no plain numbers, and which therefore answer it themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mmspec.loop import OnStep
from mmspec.recipes import Recipe


@dataclass(frozen=True)
class Call:
    """What transformers made of the arguments, and those of `mmspec.generate`.

    - `model`: as it is inside `torch.compile`; `draft_model`: likewise, or None.
    - `input_ids`: as the model's own generate has them.
    - `processors`, `criteria`, `config`: the logits processors, stopping criteria and the prepared `GenerationConfig`.
    - `inputs`: what else the model was given.
    - `recipe`, `seed`, `on_step`: see `mmspec.generate`.
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
