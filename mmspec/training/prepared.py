"""The interface between training and a pipeline: prompts that are ready to be decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.target import Target
from mmspec.sampling.params import SamplingParams


@dataclass(frozen=True)
class PreparedPrompts:
    """A batch of prompts that is ready to be decoded.

    Attributes:
        make: Makes the target with these prompts, before its prefill.
        layout: Layout of the sequences.
        samplings: Sampling parameters of each row.
        resources: The resources of the model for drafters.
        embedding: Embedding [V, D] of the target's tokens, to initialize a head with; None if it has another shape.
        small: Computes raw logits [B, N, V] of a small model for these prompts and tokens int64 [B, N], with gradients;
            None if the pipeline has no small model.
        small_target: Wraps a small model as a target for these prompts; None if the pipeline has no small model.
    """

    make: Callable[[], Target]
    layout: Layout
    samplings: Sequence[SamplingParams]
    resources: DraftResources
    embedding: Tensor | None = None
    small: Callable[[nn.Module, Tensor], Tensor] | None = None
    small_target: Callable[[nn.Module], Target] | None = None


class TrainablePipeline(Protocol):
    """A pipeline that drafters can be trained for."""

    def prepare(
        self,
        prompts: Sequence[str],
        slack: int,
        temperature: float | None = None,
        guidance_scale: float | None = None,
    ) -> PreparedPrompts:
        """Prepares prompts for decoding.

        Args:
            slack: Number of tokens by which windows may reach past the end of a sequence.
            temperature: The temperature of the target; None for the pipeline's default.
            guidance_scale: The guidance of the target; None for the pipeline's default.

        Raises:
            PromptError: If the model cannot read a prompt.
            ArgumentError: If the prompts and the defaults cannot be decoded together.
        """
        ...

    def new_small(self) -> Any:
        """A small model to train: a copy of the pipeline's own if it has one, else one with random weights.

        The module has `save_pretrained`.
        """
        ...

    def add_drafter(self, folder: str | Path) -> None:
        """Loads a trained drafter, which replaces the one of its kind."""
        ...


@runtime_checkable
class GivesOutCodes(Protocol):
    """A trainable pipeline whose images are codes, where its sequences have other ids, or ends of lines between."""

    def sequences(self, prompts: Sequence[str], codes: Tensor) -> Tensor:
        """The sequences int64 [B, N] of whole images, in the tokens of `TrainablePipeline.prepare`.

        Args:
            prompts: Their prompts.
            codes: int64 [B, n], as in the output of the pipeline.

        Raises:
            ArgumentError: If the codes are not those of images of the pipeline's defaults.
        """
        ...
