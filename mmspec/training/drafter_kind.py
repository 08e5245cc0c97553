"""A kind of drafter that can be trained: how it is built, which loss it has, which recipe measures it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.decoding.layout import Layout
from mmspec.decoding.target import FeatureTarget
from mmspec.training.objectives import TeacherOutput, run_teacher
from mmspec.training.prepared import PreparedPrompts
from mmspec.training.settings import TrainingSettings


@dataclass(frozen=True)
class Batch:
    """What a loss is computed from.

    Attributes:
        prepared: The prompts.
        teacher: The tokens, and what the target says about them: a `TeacherOutput`, or what the kind's `teach` returns.
        generator: Chooses the parts of the sequences that a block head, a grid head or prompt tokens are trained on.
        reference: The reference of a small model; see `mmspec.training.objectives.improvable`.
    """

    prepared: PreparedPrompts
    teacher: Any
    settings: TrainingSettings
    generator: torch.Generator
    reference: nn.Module | None = None


@dataclass(frozen=True)
class HeadSizes:
    """The sizes of a new head.

    Attributes:
        layout: Layout of its sequences.
        dim: Width of its features.
        intermediate_size: Width of the head's MLP.
        heads: Number of attention heads.
        rope_theta: Base of the rotary embedding.
        grid_size: Tokens per image side, for a 2-D rotary embedding; None for a 1-D one.
    """

    target: FeatureTarget
    layout: Layout
    dim: int
    intermediate_size: int
    heads: int
    rope_theta: float
    grid_size: int | None


def teach_tokens(
    prepared: PreparedPrompts,
    tokens: Tensor,
    features: Tensor | None,
    layers: Sequence[int],
    generator: torch.Generator,
) -> TeacherOutput:
    """Runs the target on sequences int64 [B, N]."""
    return run_teacher(prepared, tokens, features, layers)


def with_weights(head: Any, prepared: PreparedPrompts) -> None:
    """Initializes the weights of a head."""
    head.init_weights()


def with_embedding(head: Any, prepared: PreparedPrompts) -> None:
    """Initializes the weights of a head, and copies the target's embedding."""
    head.init_weights()
    if prepared.embedding is not None:
        head.embed_tokens.weight.data[: len(prepared.embedding)].copy_(prepared.embedding)


@dataclass(frozen=True)
class DrafterKind:
    """A kind of drafter.

    Attributes:
        recipe: The recipe that measures its acceptance.
        loss: The loss of a batch.
        new: Builds a head on the features of tokens, before its weights are initialized; None for other kinds.
        teach: Runs the target on sequences int64 [B, N], given their features if they are stored, the layers that the
            drafter reads, and a generator that chooses parts of them.
        keeps_features: Whether the target's features may be stored with the sequences.
        head: Whether the drafter is a head; else it is a small model, which the pipeline builds.
        slack: Tokens that the loss reads past the end of a sequence, by the depth of the drafter.
        initialize: Sets the first weights of what `new` has built.
        build: Builds a head of another sort than on the features of tokens; `new` and `initialize` are then not used.
        mask_token: Whether the head reads a mask token, which settings may choose.
        decodes: Yields the losses of a step, one update each, from windows that it decodes with the drafter; `loss` and
            `teach` are then not used, and no sequences are generated. None for other kinds.
    """

    recipe: str
    loss: Callable[[Any, Batch], Tensor]
    new: Callable[[HeadSizes, TrainingSettings], nn.Module] | None = None
    teach: Callable[[PreparedPrompts, Tensor, Tensor | None, Sequence[int], torch.Generator], Any] = teach_tokens
    keeps_features: bool = True
    head: bool = True
    slack: Callable[[int], int] = lambda depth: 1
    decodes: Callable[[Any, Batch], Iterator[Tensor]] | None = None
    initialize: Callable[[Any, PreparedPrompts], None] = with_embedding
    build: Callable[[PreparedPrompts, TrainingSettings], nn.Module] | None = None
    mask_token: bool = False

    @property
    def learns_online(self) -> bool:
        """Whether it can learn from finished sequences, of which the tokens and the features are known."""
        return self.decodes is None and self.keeps_features


def mlp_width(dim: int) -> int:
    """8/3 of the features' width, rounded up to a multiple of 32."""
    return -(-8 * dim // 3 // 32) * 32


def head_sizes(dim: int) -> tuple[int, int]:
    """The number of attention heads of a head on features of width `dim`, and the width of its MLP."""
    return next(h for h in range(max(dim // 64, 1), 0, -1) if dim % (4 * h) == 0), mlp_width(dim)
