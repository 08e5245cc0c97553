"""What training needs of a pipeline: prompts that are ready to be decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from mmspec.engine import Aids
from mmspec.law import Sampling
from mmspec.target import Layout, Target


@dataclass(frozen=True)
class Prepared:
    """A batch of prompts.

    - `make`: the target with the prompts given, not read yet.
    - `layout`: the sequence to be made; `samplings`: how the tokens of each row are drawn.
    - `aids`: what drafters may use.
    - `embedding`: [V, D], that of the target's tokens, for a head to begin with; None where it has another shape.
    - `small`: raw logits [B, N, V] of a smaller model with these prompts and tokens int64 [B, N], with gradients;
      `small_target`: that model wrapped as a target. None where the pipeline has no such models.
    """

    make: Callable[[], Target]
    layout: Layout
    samplings: Sequence[Sampling]
    aids: Aids
    embedding: Tensor | None = None
    small: Callable[[nn.Module, Tensor], Tensor] | None = None
    small_target: Callable[[nn.Module], Target] | None = None


class Pipe(Protocol):
    """A pipeline that drafters can be trained for."""

    def prepare(self, prompts: Sequence[str], slack: int) -> Prepared:
        """The prompts, with the pipeline's default settings; windows may reach `slack` tokens past the end.

        **Raises:** `PromptError`, `ArgumentError`.
        """
        ...

    def new_small(self) -> Any:
        """A smaller model with random weights, a module that `save_pretrained` writes, or the one it has."""
        ...

    def add_drafter(self, folder: str | Path) -> None:
        """Takes a trained drafter."""
        ...
