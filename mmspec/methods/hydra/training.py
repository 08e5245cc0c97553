"""Training of Hydra heads."""

from __future__ import annotations

from torch import Tensor

from mmspec.methods.hydra.head import HydraHeads
from mmspec.training.drafter_kind import DrafterKind, HeadSizes
from mmspec.training.objectives import TeacherOutput, ahead_loss
from mmspec.training.settings import TrainingSettings


def hydra_loss(heads: HydraHeads, teacher: TeacherOutput, loss: str) -> Tensor:
    """The loss over heads: from the feature that token j was sampled from, head i predicts token j + 1 + i.

    It also reads the true tokens j to j + i; those past the end learn nothing.
    """
    features, count = teacher.features, teacher.tokens.shape[1]
    tokens = teacher.tokens.repeat(len(features) // len(teacher.tokens), 1)
    predictions = [
        heads(features[:, : count - 1 - i], tokens[:, :-1].unfold(1, i + 1, 1)).to(features)
        for i in range(min(heads.count, count - 1))
    ]
    return ahead_loss(loss, teacher, predictions)


def _new_hydra(sizes: HeadSizes, settings: TrainingSettings) -> HydraHeads:
    return HydraHeads(sizes.target.vocab_size, sizes.dim, sizes.intermediate_size, settings.depth)


KIND = DrafterKind("hydra", lambda head, b: hydra_loss(head, b.teacher, b.settings.loss), _new_hydra)
