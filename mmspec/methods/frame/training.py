"""The objective of frame heads: the distributions of whole frames, from the feature of an earlier frame.

Frames are long sequences of tokens, and each token's distribution is as wide as a vocabulary; so a step takes one span
of each sequence. The target reads all frames before the span in one call of its backbone, and the span in one call of
its depth decoder. Its features are not stored: the distributions have to be computed anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mmspec.methods.frame.head import FrameHead
from mmspec.training.drafter_kind import DrafterKind, mlp_width
from mmspec.training.frame_teacher import frame_teacher
from mmspec.training.objectives import LOSSES, chain_loss
from mmspec.training.prepared import PreparedPrompts
from mmspec.training.settings import TrainingSettings

SPAN = 32  # frames of a sequence in one step


@dataclass(frozen=True)
class FrameTeacherOutput:
    """The target's distributions and features along a span of n frames of its own sequences.

    Attributes:
        frames: int64 [B, n, K].
        mask: bool [B, n], False after the end of a row.
        p: float32 [B, n, K, V], the target distributions that the tokens were sampled from, without top-k and top-p.
        features: [B, n, D], the features of the frames.
        temperatures: float32 [K].
    """

    frames: Tensor
    mask: Tensor
    p: Tensor
    features: Tensor
    temperatures: Tensor


def run_frame_teacher(prepared: PreparedPrompts, tokens: Tensor, generator: torch.Generator) -> FrameTeacherOutput:
    """Runs the target on a random span of sequences int64 [B, N] that it has generated."""
    target = frame_teacher(prepared)
    size = target.frame_size
    frames = tokens[:, : tokens.shape[1] // size * size].unflatten(1, (-1, size)).to(target.device)
    mask = (frames[..., 0] != target.vocab_size - 1).long().cumprod(1).bool()
    span = min(frames.shape[1], SPAN)
    start = int(torch.randint(frames.shape[1] - span + 1, (), generator=generator))
    with torch.no_grad():
        features, p = target.teach(frames, start, start + span)
    taught = frames[:, start : start + span]
    return FrameTeacherOutput(taught, mask[:, start : start + span], p, features, target.temperatures)


def frame_loss(head: FrameHead, teacher: FrameTeacherOutput, loss: str, depth: int) -> Tensor:
    """The loss of the frames that follow each feature: the rest of its own frame, and `depth` later ones."""
    frames, span = teacher.frames, teacher.frames.shape[1]
    depth = min(depth, span - 1)
    books = torch.arange(head.codebooks, device=frames.device)
    embeds = head.embed(frames, books)  # [B, n, K, S]
    sums = embeds.cumsum(2)
    anchors = span - depth
    state = head.start(teacher.features[:, :anchors].to(head.dtype))
    values, masks = list[Tensor](), list[Tensor]()
    for d in range(depth + 1):
        if d:
            state = head.advance(state, sums[:, d - 1 : d - 1 + anchors, -1])
        # The first token of the anchor's own frame is known.
        first, own = int(d == 0), slice(d, d + anchors)
        hidden = head.hidden(state[:, :, None], sums[:, own] - embeds[:, own], books)
        logits = torch.stack([head.logits(hidden[:, :, k], k) for k in range(first, head.codebooks)], dim=2)
        q = (logits.float() / teacher.temperatures[first:, None]).softmax(-1)
        values.append(LOSSES[loss](teacher.p[:, own, first:], q, None, None))
        masks.append(teacher.mask[:, own, None].expand(values[-1].shape))
    return chain_loss(loss, torch.cat(values, dim=2), torch.cat(masks, dim=2))


FRAME_WIDTH = 512  # of a frame head, at most: its tables have 2 * K * V vectors of this width


def _new_frame(prepared: PreparedPrompts, settings: TrainingSettings) -> FrameHead:
    target = frame_teacher(prepared)
    with torch.no_grad():
        target.prefill()
        dim = target.frame_features(np.zeros(len(prepared.samplings), dtype=np.int64)).shape[-1]
    width = min(dim, FRAME_WIDTH)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed % 2**63)
        head = FrameHead(target.vocab_size, dim, target.frame_size, width, settings.hidden or mlp_width(width))
        head.init_weights()
    return head.to(target.device)


def _teach_frames(
    prepared: PreparedPrompts,
    tokens: Tensor,
    features: Tensor | None,
    layers: Sequence[int],
    generator: torch.Generator,
) -> FrameTeacherOutput:
    return run_frame_teacher(prepared, tokens, generator)


KIND = DrafterKind(
    "frame",
    lambda head, b: frame_loss(head, b.teacher, b.settings.loss, b.settings.depth),
    teach=_teach_frames,
    keeps_features=False,
    build=_new_frame,
)
