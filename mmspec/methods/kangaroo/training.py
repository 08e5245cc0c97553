"""Training of Kangaroo adapters."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mmspec.decoding.target import EarlyExit, ExitFeatureTarget
from mmspec.drafters.early_exit import EarlyExitTarget
from mmspec.errors import ArgumentError
from mmspec.methods.kangaroo.head import ExitAdapter
from mmspec.training.drafter_kind import DrafterKind, HeadSizes, with_weights
from mmspec.training.objectives import TeacherOutput, ahead_loss
from mmspec.training.prepared import PreparedPrompts
from mmspec.training.settings import TrainingSettings


def kangaroo_loss(adapter: ExitAdapter, prepared: PreparedPrompts, teacher: TeacherOutput, loss: str) -> Tensor:
    """The loss of an adapter that reads the early exit's features after token j and predicts token j + 1."""
    target = prepared.make()
    assert isinstance(target, ExitFeatureTarget)
    tokens = teacher.tokens
    with torch.no_grad(), torch.autocast(tokens.device.type, enabled=False):
        target.prefill()
        part = EarlyExit(adapter.exit_layer, guided=True)
        target.forward(tokens[:, :-1], np.zeros(len(tokens), dtype=np.int64), part)
        features = target.exit_features()
    return ahead_loss(loss, teacher, [adapter(features).to(teacher.features)])


def _new_adapter(sizes: HeadSizes, settings: TrainingSettings) -> ExitAdapter:
    if not isinstance(sizes.target, ExitFeatureTarget):
        raise ArgumentError("no drafter of kind 'kangaroo' can be trained for this model: it has no early exit")
    EarlyExitTarget(sizes.target, EarlyExit(settings.layers, guided=True))  # refuses a number that is too large
    return ExitAdapter(
        sizes.target.vocab_size,
        sizes.dim,
        sizes.intermediate_size,
        sizes.heads,
        settings.layers,
        rope_theta=sizes.rope_theta,
        grid_size=sizes.grid_size,
        max_position_embeddings=sizes.layout.length,
    )


KIND = DrafterKind(
    "kangaroo",
    lambda adapter, b: kangaroo_loss(adapter, b.prepared, b.teacher, b.settings.loss),
    _new_adapter,
    initialize=with_weights,
)
