"""What training needs of a pipeline: prompts that are ready to be decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.target import Target
from mmspec.sampling.params import SamplingParams


@dataclass(frozen=True)
class Prepared:
    """A batch of prompts.

    Attributes:
        make: The target with the prompts given, not read yet.
        layout: The sequence to be made.
        samplings: How the tokens of each row are drawn.
        resources: What drafters may use.
        embedding: [V, D], that of the target's tokens, for a head to begin with; None where it has another shape.
        small: Raw logits [B, N, V] of a smaller model with these prompts and tokens int64 [B, N], with gradients.
        small_target: That model wrapped as a target. None where the pipeline has no such models.
    """

    make: Callable[[], Target]
    layout: Layout
    samplings: Sequence[SamplingParams]
    resources: DraftResources
    embedding: Tensor | None = None
    small: Callable[[nn.Module, Tensor], Tensor] | None = None
    small_target: Callable[[nn.Module], Target] | None = None


class Pipe(Protocol):
    """A pipeline that drafters can be trained for."""

    def prepare(self, prompts: Sequence[str], slack: int) -> Prepared:
        """The prompts, with the pipeline's default settings; windows may reach `slack` tokens past the end.

        Raises:
            PromptError: When a prompt cannot be read by the model.
            ArgumentError: When an argument has a value that is not allowed.
        """
        ...

    def new_small(self) -> Any:
        """A smaller model with random weights, a module that `save_pretrained` writes, or the one it has."""
        ...

    def add_drafter(self, folder: str | Path) -> None:
        """Takes a trained drafter."""
        ...
