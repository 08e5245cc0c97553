"""The training objective of a block head: blocks that begin at random tokens of the target's own sequences."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mmspec.decoding.target import LayerFeatureTarget
from mmspec.methods.block.head import BlockHead
from mmspec.sampling.logits import split_cfg
from mmspec.training.drafter_kind import DrafterKind, HeadSizes
from mmspec.training.objectives import LOSSES, TeacherOutput, chain_loss
from mmspec.training.settings import TrainingSettings

_KNOWN = 0.5  # share of the blocks in which known tokens follow the anchor


def block_loss(head: BlockHead, teacher: TeacherOutput, loss: str, generator: torch.Generator) -> Tensor:
    """The loss of blocks at random anchors.

    Half of the blocks consist of the anchor and mask tokens. In the others, known tokens follow the anchor, as after
    drafts that are reused. The sequential head reads the true token before each slot. Later positions weigh less, since
    they only count if those before them are accepted.

    Args:
        teacher: The target on its sequences.
        loss: A name in `mmspec.training.objectives.LOSSES`.
        generator: Random numbers of the anchors, on the CPU.
    """
    batch, length = teacher.tokens.shape
    device, size, count = teacher.tokens.device, head.block_size, head.count
    lengths = teacher.mask.sum(1, keepdim=True).cpu()
    blocks = max(2 * int(lengths.float().mean()) // size, 1)
    anchor = (torch.rand(batch, blocks, generator=generator) * (lengths - 1).clamp(min=1)).long()
    known = torch.randint(1, count, (batch, blocks), generator=generator) if count > 1 else torch.zeros_like(anchor)
    known = torch.where(torch.rand(batch, blocks, generator=generator) < _KNOWN, known, 0)
    anchor, known = anchor.to(device), known.to(device)
    step = torch.arange(size, device=device)
    at = anchor[..., None] + step  # of the slots
    row = torch.arange(batch, device=device)[:, None, None]
    tokens = teacher.tokens[row, at.clamp(max=length - 1)]
    tokens = tokens.masked_fill(step > known[..., None], head.mask_token_id)
    factor = len(teacher.context) // batch
    every = torch.arange(length, device=device)
    context = head.context(teacher.context, head.prefix + every.expand(len(teacher.context), -1))
    visible = (every <= anchor[..., None]).repeat(factor, 1, 1)
    slots = (head.prefix + 1 + at).repeat(factor, 1, 1)
    hidden = head(tokens.repeat(factor, 1, 1), slots, context, visible)
    hidden = hidden[:, :, int(not head.sample_from_anchor) :]
    # The prediction at depth d is of token anchor + 1 + d, after token anchor + d.
    depth = torch.arange(count, device=device)
    position = anchor[..., None] + 1 + depth
    inside = position < length
    position = position.clamp(max=length - 1)
    logits = teacher.lm_head(hidden.to(teacher.features)).float()
    if head.markov_head is not None:
        before = teacher.tokens[row, (position - 1).clamp(min=0)].repeat(factor, 1, 1)
        bias, state = [], hidden.new_zeros(*hidden.shape[:2], head.markov_head.rank)
        for d in range(count):
            one, state = head.markov_head(before[:, :, d], hidden[:, :, d], state)
            bias.append(one)
        logits = logits + torch.stack(bias, dim=2).to(logits)
    flat = split_cfg(logits.flatten(1, 2), factor > 1)
    q = teacher.sampler(flat, position.flatten(1).cpu().numpy().astype(np.int64)).unflatten(1, (blocks, count))
    p = teacher.p[row, position]
    mask = inside & teacher.mask[row, position] & (depth >= known[..., None])
    weights = torch.exp(-(depth - known[..., None]).clamp(min=0) / max(count / 4, 2))
    return chain_loss(loss, LOSSES[loss](p, q, None, None), mask, weights)


def _new_block(sizes: HeadSizes, settings: TrainingSettings) -> BlockHead:
    return BlockHead(
        sizes.target.vocab_size,
        sizes.dim,
        sizes.intermediate_size,
        sizes.heads,
        settings.layers,
        layer_ids=sizes.target.fused_layers if isinstance(sizes.target, LayerFeatureTarget) else (),
        block_size=settings.depth,
        sample_from_anchor=True,
        mask_token_id=settings.mask_token,
        markov_rank=settings.markov_rank,
        rope_theta=sizes.rope_theta,
        grid_size=sizes.grid_size,
        max_position_embeddings=sizes.layout.length + 1,
        # No layer has a window, but vLLM applies what this says to all of them.
        sliding_window_non_causal=True,
    )


KIND = DrafterKind(
    "block", lambda head, b: block_loss(head, b.teacher, b.settings.loss, b.generator), _new_block, mask_token=True
)
