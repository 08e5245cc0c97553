"""The loss of prompt tokens, with gradients through the target and its KV cache."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mmspec.decoding.target import PromptTarget
from mmspec.errors import ArgumentError
from mmspec.methods.prompt.drafter import with_prompts
from mmspec.methods.prompt.head import PromptTokens
from mmspec.training.drafter_kind import DrafterKind, HeadSizes
from mmspec.training.objectives import LOSSES, TeacherOutput, chain_loss
from mmspec.training.prepared import PreparedPrompts
from mmspec.training.settings import TrainingSettings

PLACES = 64  # of a sequence in each step, after which prompts are read


def prompt_loss(
    prompts: PromptTokens, prepared: PreparedPrompts, teacher: TeacherOutput, loss: str, generator: torch.Generator
) -> Tensor:
    """The loss of prompts after random tokens j of each sequence: prompt i there predicts token j + 2 + i.

    Each of them is read once, after the true tokens up to j, as after an accepted path in decoding.

    Args:
        prompts: The prompt tokens, m.
        prepared: The prompts of the sequences, with a slack of `PLACES` * m tokens.
        teacher: The target on the sequences.
        loss: A name in `LOSSES`.
        generator: Chooses the places.

    Raises:
        ArgumentError: If the target cannot read prompt tokens.
    """
    target, tokens = prepared.make(), teacher.tokens
    if not isinstance(target, PromptTarget):
        raise ArgumentError(f"no prompt tokens can be trained for this model: {type(target).__name__} reads none")
    rows, length, count = *tokens.shape, prompts.count
    if length < 3:
        return prompts.weight.sum() * 0  # no prompt has a token to predict
    chosen = torch.randperm(length - 2, generator=generator)[:PLACES].sort().values.numpy()
    start, device = np.zeros(rows, dtype=np.int64), tokens.device
    tree = with_prompts(np.arange(length - 2)[None], chosen, count, device)  # after a chain of all tokens but the last
    ids = target.vocab_size + torch.arange(count, device=device).repeat(rows, len(chosen))
    with torch.autocast(device.type, enabled=False):
        target.read_prompts(prompts.weight)
        with torch.no_grad():
            target.prefill()
            target.forward(tokens[:, :-1], start)
        # All layers of a cache may share a tensor, so that a layer writes into what an earlier one has saved.
        with torch.autograd.graph.saved_tensors_hooks(_keep, lambda tensor: tensor):
            logits = target.forward_tree(ids, start, tree, length - 1)
    positions = (chosen[:, None] + 2 + np.arange(count)).ravel()
    inside = torch.from_numpy(positions < length).to(device)
    positions = positions.clip(max=length - 1)
    q = teacher.sampler(logits, np.broadcast_to(positions, (rows, len(positions))))
    values = LOSSES[loss](teacher.p[:, positions], q, None, None)
    mask = teacher.mask[:, positions] & inside
    return chain_loss(loss, values.unflatten(1, (-1, count)), mask.unflatten(1, (-1, count)))


def _keep(tensor: Tensor) -> Tensor:
    """A copy of a part of a larger tensor, such as the read slots of a cache; others are not written to."""
    part = tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size()
    return tensor.clone() if part else tensor


def _new_prompts(sizes: HeadSizes, settings: TrainingSettings) -> PromptTokens:
    if not isinstance(sizes.target, PromptTarget):
        name = type(sizes.target).__name__
        raise ArgumentError(f"no drafter of kind 'prompt' can be trained for this model: {name} reads no prompt tokens")
    return PromptTokens(sizes.target.vocab_size, sizes.dim, settings.depth)


KIND = DrafterKind(
    "prompt",
    lambda prompts, b: prompt_loss(prompts, b.prepared, b.teacher, b.settings.loss, b.generator),
    _new_prompts,
    slack=lambda depth: PLACES * depth,
    initialize=lambda prompts, prepared: prompts.init_weights(prepared.embedding),
)
