"""What each kind of drafter is taught: to say all along the target's own sequences what the target says there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from mmspec.decoding.target import FeatureTarget
from mmspec.errors import ArgumentError
from mmspec.heads.eagle import EagleHead
from mmspec.heads.medusa import MedusaHeads
from mmspec.sampling.logits import Logits, split_cfg
from mmspec.sampling.sampler import TokenSampler
from mmspec.training.losses import Loss
from mmspec.training.prepared import Prepared


@dataclass(frozen=True)
class TeacherOutput:
    """The target's side of some of its own sequences of N tokens.

    Attributes:
        tokens: int64 [B, N].
        real: bool [B, N], False after the end of a row.
        p: float32 [B, N, V], the distribution of each token.
        features: [R, N, D], those the tokens were drawn from.
        sampler: What makes distributions of a drafter's guesses, in the same way.
        head: What makes distributions of a drafter's guesses, in the same way.
    """

    tokens: Tensor
    real: Tensor
    p: Tensor
    features: Tensor
    sampler: Callable[[Logits, int], Tensor]
    head: Callable[[Tensor], Tensor]

    def probs(self, guesses: Tensor, first: int) -> Tensor:
        """The distributions, float32 [B, W, V], that guesses [R, W, D] of features are for positions `first` and following."""
        return self.sampler(split_cfg(self.head(guesses), len(guesses) > len(self.tokens)), first)


def teacher_features(target: FeatureTarget, tokens: Tensor) -> Tensor:
    """The features that tokens int64 [B, N] were drawn from, [R, N, D]; the target has read nothing yet."""
    with torch.no_grad():
        target.prefill()
        first = target.features()[:, -1:]
        target.forward(tokens[:, :-1], np.zeros(len(tokens), dtype=np.int64))
        return torch.cat([first, target.features()], dim=1)


def read(prepared: Prepared, tokens: Tensor, features: Tensor | None = None) -> TeacherOutput:
    """The target's side of sequences int64 [B, N] that it has made.

    Distributions are those it draws from, but for top-k and top-p: what those cut off has no gradient.

    Args:
        features: What `teacher_features` gave, [R, N, D]; None: the target reads the sequences now.
    """
    layout = prepared.layout
    settings = [replace(s, temperature=s.temperature or 1.0, top_k=0, top_p=1.0) for s in prepared.samplings]
    target = feature_target(prepared)
    made = TokenSampler(settings, layout.constraint, target.device)

    def sampler(logits: Logits, first: int) -> Tensor:
        batch, width = logits.cond.shape[:2]
        return made(logits, np.broadcast_to(first + np.arange(width), (batch, width)))

    tokens = tokens.to(target.device)
    features = teacher_features(target, tokens) if features is None else features.to(target.device)
    with torch.no_grad():
        p = sampler(split_cfg(target.head(features), len(features) > len(tokens)), 0)
    ends = torch.isin(tokens, torch.tensor(sorted(layout.eos), dtype=tokens.dtype, device=tokens.device))
    real = ends.long().cumsum(1) - ends.long() == 0
    return TeacherOutput(tokens, real, p, features, sampler, target.head)


def feature_target(prepared: Prepared) -> FeatureTarget:
    """The target.

    Raises:
        ArgumentError: When it shows no features, which training starts from.
    """
    target = prepared.make()
    if not isinstance(target, FeatureTarget):
        raise ArgumentError(f"no drafter can be trained for this model: {type(target).__name__} shows no features")
    return target


def mean_over(real: Tensor, values: Tensor) -> Tensor:
    """The mean of values [B, W] at real places."""
    return (values * real).sum() / real.sum().clamp(min=1)


def eagle_loss(head: EagleHead, teacher: TeacherOutput, loss: Loss, depth: int) -> Tensor:
    """The mean loss over depths of drafts that begin anywhere.

    At depth d (from 0) place j holds token j and what was foretold of the feature it was drawn from, d guesses deep; it
    foretells feature j + 1 and the distribution of token j + 1.
    """
    features = teacher.features[:, :-1].to(head.dtype)
    tokens = teacher.tokens[:, :-1].repeat(len(features) // len(teacher.tokens), 1)
    parts = []
    for d, guesses in enumerate(head.unroll(tokens, features, depth)):
        guesses = guesses[:, d:].to(teacher.features)
        q, f = teacher.probs(guesses, 1 + d), teacher.features[:, 1 + d :]
        parts.append(part(loss, teacher, q, f, guesses, 1 + d))
    return torch.stack(parts).mean()


def medusa_loss(heads: MedusaHeads, teacher: TeacherOutput, loss: Loss) -> Tensor:
    """The mean loss over heads: from the feature that token j was drawn from, head i foretells token j + 1 + i."""
    guessed = heads(teacher.features).to(teacher.features)
    parts = []
    for i in range(heads.count):
        guesses = guessed[:, : -1 - i, i]
        q, f = teacher.probs(guesses, 1 + i), teacher.features[:, 1 + i :]
        parts.append(part(loss, teacher, q, f, guesses, 1 + i))
    return torch.stack(parts).mean()


def part(loss: Loss, teacher: TeacherOutput, q: Tensor, f: Tensor, g: Tensor, first: int) -> Tensor:
    """The mean loss of distributions and features for positions `first` and following; of features, of both sides'."""
    sides = len(g) // len(q)
    losses = [loss(teacher.p[:, first:], q, *both) for both in zip(f.chunk(sides), g.chunk(sides), strict=True)]
    return mean_over(teacher.real[:, first:], torch.stack(losses).mean(0))


def small_loss(model: nn.Module, prepared: Prepared, teacher: TeacherOutput, loss: Loss) -> Tensor:
    """The mean loss of a smaller model, whose distributions are not guided."""
    assert prepared.small is not None
    logits = prepared.small(model, teacher.tokens)
    return mean_over(teacher.real, loss(teacher.p, teacher.sampler(Logits(logits, None), 0), None, None))
