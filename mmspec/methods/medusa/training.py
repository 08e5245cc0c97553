"""Training of Medusa heads."""

from __future__ import annotations

from torch import Tensor

from mmspec.methods.medusa.head import MedusaHeads
from mmspec.training.drafter_kind import DrafterKind, HeadSizes
from mmspec.training.objectives import TeacherOutput, ahead_loss
from mmspec.training.settings import TrainingSettings


def medusa_loss(heads: MedusaHeads, teacher: TeacherOutput, loss: str) -> Tensor:
    """The loss over heads: from the feature that token j was sampled from, head i predicts token j + 1 + i."""
    predicted = heads(teacher.features).to(teacher.features)
    return ahead_loss(loss, teacher, [predicted[:, : -1 - i, i] for i in range(heads.count)])


def _new_medusa(sizes: HeadSizes, settings: TrainingSettings) -> MedusaHeads:
    return MedusaHeads(sizes.target.vocab_size, sizes.dim, settings.depth)


KIND = DrafterKind(
    "medusa",
    lambda head, b: medusa_loss(head, b.teacher, b.settings.loss),
    _new_medusa,
    initialize=lambda head, prepared: None,
)
