"""The training objective of a grid head: drafts that begin at random tokens of the target's own sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.errors import ArgumentError
from mmspec.methods.grid.head import GridHead
from mmspec.sampling.logits import split_cfg
from mmspec.training.drafter_kind import DrafterKind, HeadSizes
from mmspec.training.objectives import LOSSES, TeacherOutput, chain_loss
from mmspec.training.prepared import PreparedPrompts
from mmspec.training.settings import TrainingSettings

_STARTS = 8  # drafts per sequence and step


def grid_loss(head: GridHead, teacher: TeacherOutput, loss: str, depth: int, generator: torch.Generator) -> Tensor:
    """The loss of drafts of `depth` tokens after random tokens, each after the true token to its left.

    Args:
        teacher: The target on its sequences.
        loss: A name in `mmspec.training.objectives.LOSSES`.
        depth: Tokens of a draft.
        generator: Random numbers, on the CPU.
    """
    batch, length = teacher.tokens.shape
    device, factor = teacher.tokens.device, len(teacher.features) // batch
    last = torch.randint(max(length - 1, 1), (batch, _STARTS, 1), generator=generator).to(device)
    ahead = torch.arange(depth, device=device).expand(batch, _STARTS, -1)
    position = last + 1 + ahead
    row = torch.arange(batch * factor, device=device)[:, None, None]

    def feature(index: Tensor) -> Tensor:
        inside = (index >= 1) & (index <= last) | (index == last)
        found = teacher.features[row, index.clamp(0, length - 1).repeat(factor, 1, 1)]
        return found * inside.repeat(factor, 1, 1)[..., None]

    above = position - head.grid_width + 1
    mask = position < length
    position = position.clamp(max=length - 1)
    tokens = teacher.tokens[row[:batch], position - 1].repeat(factor, 1, 1)
    ahead_of = ahead.repeat(factor, 1, 1)
    predicted = head(feature(last.expand_as(above)), feature(above), feature(above + 1), tokens, ahead_of)
    logits = teacher.lm_head(predicted.to(teacher.features)).flatten(1, 2)
    q = teacher.sampler(split_cfg(logits, factor > 1), position.flatten(1).cpu().numpy())
    q = q.unflatten(1, (_STARTS, depth))
    mask = mask & teacher.mask[row[:batch], position]
    return chain_loss(loss, LOSSES[loss](teacher.p[row[:batch], position], q, None, None), mask)


def _new_grid(sizes: HeadSizes, settings: TrainingSettings) -> GridHead:
    if sizes.layout.width is None:
        raise ArgumentError("--kind grid is for images, whose tokens have rows; this model generates a stream")
    return GridHead(sizes.target.vocab_size, sizes.dim, sizes.intermediate_size, sizes.layout.width)


def _initialize(head: GridHead, prepared: PreparedPrompts) -> None:
    head.init_weights()
    if prepared.embedding is not None:
        head.left.weight.data[: len(prepared.embedding)].copy_(prepared.embedding)


KIND = DrafterKind(
    "grid",
    lambda head, b: grid_loss(head, b.teacher, b.settings.loss, b.settings.depth, b.generator),
    _new_grid,
    initialize=_initialize,
)
