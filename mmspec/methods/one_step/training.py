"""The loss of a one-step generator: noise that would have made the target's sequences, and what it is mapped to."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.methods.one_step.head import OneStepHead
from mmspec.sampling.logits import split_cfg
from mmspec.training.drafter_kind import DrafterKind, HeadSizes
from mmspec.training.objectives import LOSSES, TeacherOutput, chain_loss, spread
from mmspec.training.settings import TrainingSettings

PLACES = 8  # of a sequence in each step, after which noise is read


def noise_of(p: Tensor, tokens: Tensor, generator: torch.Generator) -> Tensor:
    """Gumbel noise float32 [..., V], given that it has picked `tokens` from `p`: argmax(log p + noise) is the token.

    Over tokens that were sampled from p the noise is standard Gumbel noise. It is made backwards: the maximum first,
    then the noise of the other tokens, truncated at it (Maddison et al. 2014, arXiv 1411.0030).

    Args:
        p: float32 [..., V].
        tokens: int64 [...].
        generator: On the CPU.
    """

    def gumbel(*shape: int) -> Tensor:
        uniform = torch.rand(shape, generator=generator).clamp(min=1e-12).to(p.device)
        return -(-uniform.log()).clamp(min=1e-12).log()

    top = gumbel(*tokens.shape)[..., None]
    others = -torch.log(p * torch.exp(-top) + torch.exp(-gumbel(*p.shape)))
    own = top - p.gather(-1, tokens[..., None]).clamp(min=1e-30).log()
    return others.scatter(-1, tokens[..., None], own)


def one_step_loss(
    head: OneStepHead, teacher: TeacherOutput, loss: str, depth: int, generator: torch.Generator
) -> Tensor:
    """The loss of the `depth` predictions after each of `PLACES` random tokens, the same in all sequences.

    Args:
        head: The generator.
        teacher: The target on its sequences.
        loss: A name in `LOSSES`.
        depth: Tokens that are predicted from one feature.
        generator: Chooses the places and the noise.
    """
    count = min(depth, teacher.tokens.shape[1] - 1)
    places = 1 + torch.randperm(teacher.tokens.shape[1] - count, generator=generator)[:PLACES]
    losses = [_loss_after(int(known), count, head, teacher, loss, generator) for known in places]
    return torch.stack(losses).mean()


def _loss_after(
    known: int, count: int, head: OneStepHead, teacher: TeacherOutput, loss: str, generator: torch.Generator
) -> Tensor:
    """The loss of `count` predictions after the first `known` tokens."""
    tokens, rows = teacher.tokens, len(teacher.tokens)
    noisy = slice(known, known + count - 1)
    noise = noise_of(teacher.p[:, noisy], tokens[:, noisy], generator)
    places = torch.arange(known + count - 1, device=tokens.device).expand(rows, -1)
    read = torch.where(places < known, tokens[:, : known + count - 1], -1)
    feature = teacher.features[:, known - 1]
    factor = len(feature) // rows
    inputs = (each.repeat(factor, *[1] * (each.ndim - 1)) for each in (read, places, noise))
    predicted = head(*inputs, feature).to(feature)
    logits = split_cfg(teacher.lm_head(predicted), factor > 1)
    q = teacher.sampler(logits, spread(rows, known, count))
    there = slice(known, known + count)
    return chain_loss(loss, LOSSES[loss](teacher.p[:, there], q, None, None), teacher.mask[:, there])


def _new_one_step(sizes: HeadSizes, settings: TrainingSettings) -> OneStepHead:
    return OneStepHead(
        sizes.target.vocab_size,
        sizes.dim,
        sizes.intermediate_size,
        sizes.heads,
        settings.layers,
        max_position_embeddings=sizes.layout.length,
    )


KIND = DrafterKind(
    "one-step",
    lambda head, b: one_step_loss(head, b.teacher, b.settings.loss, b.settings.depth, b.generator),
    _new_one_step,
)
