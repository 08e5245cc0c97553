"""Training objectives: the losses, and what each kind of drafter is trained to predict.

Every drafter is distilled from the target on the target's own sequences. A loss compares distributions `p` (the
target's) and `q` (the drafter's), float32 [..., V], and features `f` and `g` [..., D] in the same order, which are None
if the drafter has no features. It returns one value per position, [...].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.decoding.target import FeatureTarget
from mmspec.errors import ArgumentError
from mmspec.heads.eagle import EagleHead
from mmspec.heads.medusa import MedusaHeads
from mmspec.sampling.logits import Logits, split_cfg
from mmspec.sampling.sampler import TokenSampler
from mmspec.training.prepared import PreparedPrompts

Loss = Callable[[Tensor, Tensor, Tensor | None, Tensor | None], Tensor]

_TINY = 1e-30


def kl(p: Tensor, q: Tensor, f: Tensor | None, g: Tensor | None) -> Tensor:
    """Forward Kullback-Leibler divergence KL(p || q) in nats."""
    return (p * (p.clamp(min=_TINY).log() - q.clamp(min=_TINY).log())).sum(-1)


def tvd(p: Tensor, q: Tensor, f: Tensor | None, g: Tensor | None) -> Tensor:
    """Total variation distance, in 0..1: the rejection rate of the exact test (DistillSpec, arXiv 2310.08461)."""
    return 1 - torch.minimum(p, q).sum(-1)


def smooth_l1_ce(p: Tensor, q: Tensor, f: Tensor | None, g: Tensor | None) -> Tensor:
    """EAGLE's loss (arXiv 2401.15077): smooth L1 of features plus 0.1 times the cross-entropy of distributions."""
    assert f is not None and g is not None
    cross_entropy = -(p * q.clamp(min=_TINY).log()).sum(-1)
    return F.smooth_l1_loss(g, f, reduction="none").mean(-1) + 0.1 * cross_entropy


LOSSES: dict[str, Loss] = {"kl": kl, "tvd": tvd, "smooth-l1+ce": smooth_l1_ce}


@dataclass(frozen=True)
class TeacherOutput:
    """The target's distributions and features along a batch of its own sequences of N tokens.

    With guidance, features have R = 2 * B rows, the unconditional ones last; else R = B.

    Attributes:
        tokens: int64 [B, N].
        mask: bool [B, N], False after the end of a row.
        p: float32 [B, N, V], the target distribution that each token was sampled from.
        features: [R, N, D], the features that the tokens were sampled from.
        sampler: Turns a drafter's logits from a position on into distributions, with the target's settings.
        lm_head: The target's LM head, from features to logits.
    """

    tokens: Tensor
    mask: Tensor
    p: Tensor
    features: Tensor
    sampler: Callable[[Logits, int], Tensor]
    lm_head: Callable[[Tensor], Tensor]

    def probs(self, predictions: Tensor, first: int) -> Tensor:
        """Distributions float32 [B, W, V] of predicted features [R, W, D], for positions `first` and following."""
        return self.sampler(split_cfg(self.lm_head(predictions), len(predictions) > len(self.tokens)), first)


def teacher_features(target: FeatureTarget, tokens: Tensor) -> Tensor:
    """The features [R, N, D] that tokens int64 [B, N] were sampled from.

    Args:
        target: The target, before its prefill.
        tokens: Sequences of the target.
    """
    with torch.no_grad():
        target.prefill()
        first = target.features()[:, -1:]
        target.forward(tokens[:, :-1], np.zeros(len(tokens), dtype=np.int64))
        return torch.cat([first, target.features()], dim=1)


def run_teacher(prepared: PreparedPrompts, tokens: Tensor, features: Tensor | None = None) -> TeacherOutput:
    """Runs the target on sequences int64 [B, N] that it has generated.

    The distributions are those that the target samples from, but without top-k and top-p, since tokens that are cut off
    have no gradient.

    Args:
        prepared: The prompts of the sequences.
        tokens: The sequences.
        features: From `teacher_features`, [R, N, D]; None computes them.
    """
    layout = prepared.layout
    settings = [replace(s, temperature=s.temperature or 1.0, top_k=0, top_p=1.0) for s in prepared.samplings]
    target = feature_target(prepared)
    token_sampler = TokenSampler(settings, layout.constraint, target.device)

    def sampler(logits: Logits, first: int) -> Tensor:
        batch, width = logits.cond.shape[:2]
        return token_sampler(logits, np.broadcast_to(first + np.arange(width), (batch, width)))

    tokens = tokens.to(target.device)
    features = teacher_features(target, tokens) if features is None else features.to(target.device)
    with torch.no_grad():
        p = sampler(split_cfg(target.head(features), len(features) > len(tokens)), 0)
    ends = torch.isin(tokens, torch.tensor(sorted(layout.eos), dtype=tokens.dtype, device=tokens.device))
    mask = ends.long().cumsum(1) - ends.long() == 0
    return TeacherOutput(tokens, mask, p, features, sampler, target.head)


def feature_target(prepared: PreparedPrompts) -> FeatureTarget:
    """The target of a batch of prompts.

    Raises:
        ArgumentError: If the target does not expose its features.
    """
    target = prepared.make()
    if not isinstance(target, FeatureTarget):
        raise ArgumentError(f"no drafter can be trained for this model: {type(target).__name__} exposes no features")
    return target


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of values [B, W] where the mask is True."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


def eagle_loss(head: EagleHead, teacher: TeacherOutput, loss: Loss, depth: int) -> Tensor:
    """The mean loss over draft depths, for drafts that begin at every position.

    At depth d (from 0) slot j reads token j and a prediction, d steps deep, of the feature that token j was sampled
    from; it predicts feature j + 1 and with it the distribution of token j + 1.
    """
    features = teacher.features[:, :-1].to(head.dtype)
    tokens = teacher.tokens[:, :-1].repeat(len(features) // len(teacher.tokens), 1)
    losses = []
    for d, predictions in enumerate(head.unroll(tokens, features, depth)):
        losses.append(prediction_loss(loss, teacher, predictions[:, d:].to(teacher.features), 1 + d))
    return torch.stack(losses).mean()


def medusa_loss(heads: MedusaHeads, teacher: TeacherOutput, loss: Loss) -> Tensor:
    """The mean loss over heads: from the feature that token j was sampled from, head i predicts token j + 1 + i."""
    predicted = heads(teacher.features).to(teacher.features)
    losses = [prediction_loss(loss, teacher, predicted[:, : -1 - i, i], 1 + i) for i in range(heads.count)]
    return torch.stack(losses).mean()


def prediction_loss(loss: Loss, teacher: TeacherOutput, predictions: Tensor, first: int) -> Tensor:
    """The mean loss of predicted features [R, W, D] for positions `first` and following.

    With guidance, losses of features are averaged over conditional and unconditional rows.
    """
    q, features = teacher.probs(predictions, first), teacher.features[:, first:]
    cfg_factor = len(predictions) // len(q)
    pairs = zip(features.chunk(cfg_factor), predictions.chunk(cfg_factor), strict=True)
    losses = [loss(teacher.p[:, first:], q, f, g) for f, g in pairs]
    return masked_mean(torch.stack(losses).mean(0), teacher.mask[:, first:])


def draft_model_loss(model: nn.Module, prepared: PreparedPrompts, teacher: TeacherOutput, loss: Loss) -> Tensor:
    """The mean loss of a small draft model, which runs without guidance."""
    assert prepared.small is not None
    logits = prepared.small(model, teacher.tokens)
    q = teacher.sampler(Logits(logits, None), 0)
    return masked_mean(loss(teacher.p, q, None, None), teacher.mask)
