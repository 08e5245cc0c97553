"""Training objectives: the losses, and what each kind of drafter is trained to predict.

Every drafter is distilled from the target on the target's own sequences. A loss compares distributions `p` (the
target's) and `q` (the drafter's), float32 [..., V], and features `f` and `g` [..., D] in the same order, which are None
if the drafter has no features. It returns one value per position, [...]. `lk` is a loss of whole chains of drafts,
which `chain_loss` computes from the values of `tvd`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from mmspec.decoding.target import FeatureTarget, LayerFeatureTarget
from mmspec.errors import ArgumentError
from mmspec.heads.eagle import EagleHead
from mmspec.heads.eagle3 import Eagle3Head
from mmspec.sampling.logits import Logits, split_cfg
from mmspec.sampling.sampler import TokenSampler
from mmspec.training.prepared import PreparedPrompts

Loss = Callable[[Tensor, Tensor, Tensor | None, Tensor | None], Tensor]

_TINY = 1e-30
_LEAST_VARIANCE = 0.01  # of the reward of `tvd_plus`: weights of at most 10


def kl(p: Tensor, q: Tensor, f: Tensor | None, g: Tensor | None) -> Tensor:
    """Forward Kullback-Leibler divergence KL(p || q) in nats."""
    return (p * (p.clamp(min=_TINY).log() - q.clamp(min=_TINY).log())).sum(-1)


def tvd(p: Tensor, q: Tensor, f: Tensor | None, g: Tensor | None) -> Tensor:
    """Total variation distance, in 0..1: the rejection rate of the exact test (DistillSpec, arXiv 2310.08461)."""
    return 1 - torch.minimum(p, q).sum(-1)


def tvd_plus(p: Tensor, q: Tensor, f: Tensor | None, g: Tensor | None) -> Tensor:
    """TVD++ (Goel et al. 2024, arXiv 2403.00858): total variation as a reward, with the advantage normalized.

    Its gradient is that of a policy whose reward is 1 for tokens with p > q, else 0. The paper samples tokens and
    subtracts the mean reward; here the sum over the vocabulary is exact, so that the mean changes nothing, and what is
    left is the division by the standard deviation of the reward under q. It lifts the gradient of positions where the
    drafter is far off, which total variation alone hardly sees.
    """
    chance = (q.detach() * (p > q)).sum(-1)
    return tvd(p, q, f, g) / (chance * (1 - chance)).clamp(min=_LEAST_VARIANCE).sqrt()


def smooth_l1_ce(p: Tensor, q: Tensor, f: Tensor | None, g: Tensor | None) -> Tensor:
    """EAGLE's loss (arXiv 2401.15077): smooth L1 of features plus 0.1 times the cross-entropy of distributions."""
    assert f is not None and g is not None
    cross_entropy = -(p * q.clamp(min=_TINY).log()).sum(-1)
    return F.smooth_l1_loss(g, f, reduction="none").mean(-1) + 0.1 * cross_entropy


LK = "lk"
# The loss of each position. Under "lk" that is the rejection rate; see `chain_loss`.
LOSSES: dict[str, Loss] = {"kl": kl, "tvd": tvd, "tvd++": tvd_plus, "smooth-l1+ce": smooth_l1_ce, LK: tvd}


def chain_loss(name: str, values: Tensor, mask: Tensor, weights: Tensor | None = None) -> Tensor:
    """The loss of chains of drafts.

    "lk" maximizes the expected number of accepted drafts, the sum over positions of the product of the acceptance rates
    up to there: it is the mean over chains of -log of that number, whose gradient does not vanish while the drafter is
    still bad, unlike that of the number itself. The other losses are means over positions.

    Args:
        name: A name in `LOSSES`.
        values: The loss of each position, [..., K], by depth.
        mask: bool [..., K], the positions that count; in a chain they follow each other.
        weights: The weight of each position, [..., K], for losses other than "lk"; None for equal ones.
    """
    if name != LK:
        weights = mask.to(values.dtype) if weights is None else weights * mask
        return (values * weights).sum() / weights.sum().clamp(min=_TINY)
    accepted = torch.where(mask, 1 - values, 1).cumprod(-1) * mask
    return masked_mean(-accepted.sum(-1).clamp(min=_TINY).log(), mask.any(-1))


@dataclass(frozen=True)
class TeacherOutput:
    """The target's distributions and features along a batch of its own sequences of N tokens.

    With guidance, features have R = 2 * B rows, the unconditional ones last; else R = B.

    Attributes:
        tokens: int64 [B, N].
        mask: bool [B, N], False after the end of a row.
        p: float32 [B, N, V], the target distribution that each token was sampled from.
        features: [R, N, D], the features that the tokens were sampled from.
        context: [R, N, layers * D], the hidden states of earlier layers, if the drafter reads them; else `features`.
        sampler: Turns a drafter's logits [B, W, V] at positions, host int64 [B, W], into distributions, with the
            target's settings.
        lm_head: The target's LM head, from features to logits.
    """

    tokens: Tensor
    mask: Tensor
    p: Tensor
    features: Tensor
    context: Tensor
    sampler: Callable[[Logits, NDArray[np.int64]], Tensor]
    lm_head: Callable[[Tensor], Tensor]

    def probs(self, predictions: Tensor, first: int) -> Tensor:
        """Distributions float32 [B, W, V] of predicted features [R, W, D], for positions `first` and following."""
        logits = split_cfg(self.lm_head(predictions), len(predictions) > len(self.tokens))
        return self.sampler(logits, spread(len(self.tokens), first, logits.cond.shape[1]))


def spread(rows: int, first: int, width: int) -> NDArray[np.int64]:
    """The positions `first` and following of every row, host int64 [rows, width]."""
    return np.broadcast_to(first + np.arange(width), (rows, width))


def teacher_features(target: FeatureTarget, tokens: Tensor, layers: Sequence[int] = ()) -> Tensor:
    """The features [R, N, D] that tokens int64 [B, N] were sampled from, then the hidden states of `layers`, if any.

    Args:
        target: The target, before its prefill.
        tokens: Sequences of the target.

    Returns:
        [R, N, (1 + layers) * D].

    Raises:
        ArgumentError: If there are layers and the target provides those of the last one only.
    """

    def read() -> Tensor:
        if not layers:
            return target.features()
        assert isinstance(target, LayerFeatureTarget)
        return torch.cat([target.features(), target.layer_features()], dim=-1)

    with torch.no_grad():
        if layers:
            if not isinstance(target, LayerFeatureTarget):
                raise ArgumentError(f"{type(target).__name__} does not provide the features of earlier layers")
            target.collect_layers(layers)
        target.prefill()
        first = read()[:, -1:]
        target.forward(tokens[:, :-1], np.zeros(len(tokens), dtype=np.int64))
        return torch.cat([first, read()], dim=1)


def run_teacher(
    prepared: PreparedPrompts, tokens: Tensor, features: Tensor | None = None, layers: Sequence[int] = ()
) -> TeacherOutput:
    """Runs the target on sequences int64 [B, N] that it has generated.

    The distributions are those that the target samples from, but without top-k and top-p, since tokens that are cut off
    have no gradient.

    Args:
        prepared: The prompts of the sequences.
        tokens: The sequences.
        features: From `teacher_features`, with the same layers; None computes them.
        layers: The layers that the drafter reads.
    """
    layout = prepared.layout
    settings = [replace(s, temperature=s.temperature or 1.0, top_k=0, top_p=1.0) for s in prepared.samplings]
    target = feature_target(prepared)
    token_sampler = TokenSampler(settings, layout.constraint, target.device)

    tokens = tokens.to(target.device)
    features = teacher_features(target, tokens, layers) if features is None else features.to(target.device)
    width = features.shape[-1] // (1 + len(layers))
    features, context = features[..., :width], features[..., width:] if layers else features
    with torch.no_grad():
        logits = split_cfg(target.head(features), len(features) > len(tokens))
        p = token_sampler.probs(logits, spread(len(tokens), 0, tokens.shape[1]))
    ends = torch.isin(tokens, torch.tensor(sorted(layout.eos), dtype=tokens.dtype, device=tokens.device))
    mask = ends.long().cumsum(1) - ends.long() == 0
    return TeacherOutput(tokens, mask, p, features, context, token_sampler.probs, target.head)


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


def eagle_loss(head: EagleHead, teacher: TeacherOutput, loss: str, depth: int) -> Tensor:
    """The loss of drafts that begin at every position.

    At depth d (from 0) slot j reads token j and a prediction, d steps deep, of the feature that token j was sampled
    from; it predicts feature j + 1 and with it the distribution of token j + 1.
    """
    features = teacher.features[:, :-1].to(head.dtype)
    tokens = teacher.tokens[:, :-1].repeat(len(features) // len(teacher.tokens), 1)
    unrolled = head.unroll(tokens, features, depth)
    return ahead_loss(loss, teacher, [x[:, d:].to(teacher.features) for d, x in enumerate(unrolled)])


def eagle3_loss(head: Eagle3Head, teacher: TeacherOutput, loss: str, depth: int) -> Tensor:
    """As `eagle_loss`, for a head that has its own LM head: losses compare distributions only."""
    context = teacher.context[:, :-1].to(head.dtype)
    tokens = teacher.tokens[:, :-1].repeat(len(context) // len(teacher.tokens), 1)
    own = replace(teacher, lm_head=lambda outputs: head.logits(outputs).float())
    return ahead_loss(loss, own, [x[:, d:] for d, x in enumerate(head.unroll(tokens, context, depth))])


def ahead_loss(loss: str, teacher: TeacherOutput, predictions: Sequence[Tensor]) -> Tensor:
    """The loss of features predicted ahead.

    Args:
        loss: A name in `LOSSES`.
        teacher: The target on its sequences.
        predictions: By depth d, [R, N - 1 - d, D]; index j predicts the feature of token j + 1 + d.
    """
    values = [position_losses(LOSSES[loss], teacher, x, 1 + d) for d, x in enumerate(predictions)]
    masks = [teacher.mask[:, 1 + d :] for d in range(len(predictions))]
    if loss != LK:
        return torch.stack([masked_mean(v, m) for v, m in zip(values, masks, strict=True)]).mean()
    count = values[-1].shape[1]  # chains that do not reach past the end
    return chain_loss(
        loss, torch.stack([v[:, :count] for v in values], -1), torch.stack([m[:, :count] for m in masks], -1)
    )


def position_losses(loss: Loss, teacher: TeacherOutput, predictions: Tensor, first: int) -> Tensor:
    """The loss [B, W] of predicted features [R, W, D] for positions `first` and following.

    With guidance, losses of features are averaged over conditional and unconditional rows.
    """
    q, features = teacher.probs(predictions, first), teacher.features[:, first:]
    cfg_factor = len(predictions) // len(q)
    pairs = zip(features.chunk(cfg_factor), predictions.chunk(cfg_factor), strict=True)
    losses = [loss(teacher.p[:, first:], q, f, g) for f, g in pairs]
    return torch.stack(losses).mean(0)


def draft_model_loss(
    model: nn.Module,
    prepared: PreparedPrompts,
    teacher: TeacherOutput,
    loss: Loss,
    reference: nn.Module | None = None,
    select: float = 1.0,
) -> Tensor:
    """The mean loss of a small draft model, which runs without guidance.

    Args:
        prepared: The prompts.
        teacher: The target on its sequences.
        loss: The loss of a position.
        reference: A trained model of the same size; with it, only positions that it does better at count.
        select: The share of such positions; see `improvable`.
    """

    def values(of: nn.Module) -> Tensor:
        assert prepared.small is not None
        logits = prepared.small(of, teacher.tokens)
        q = teacher.sampler(Logits(logits, None), spread(len(logits), 0, logits.shape[1]))
        return loss(teacher.p, q, None, None)

    own, mask = values(model), teacher.mask
    if reference is not None:
        with torch.no_grad():
            mask = improvable(own.detach(), values(reference), mask, select)
    return masked_mean(own, mask)


def improvable(values: Tensor, reference: Tensor, mask: Tensor, share: float) -> Tensor:
    """The positions where a model is worse than a reference by most: bool, a `share` of those in `mask`, at least one.

    AdaSPEC (Hu et al. 2025, arXiv 2510.19779): a small model has no capacity for tokens that a model of its size has
    not learned either.

    Args:
        values: The loss of each position, [B, N].
        reference: The reference's, [B, N].
        mask: bool [B, N], the positions that count.
        share: In 0..1.
    """
    lag = (values - reference).masked_fill(~mask, -torch.inf).flatten()
    count = max(int(share * int(mask.sum())), 1)
    chosen = torch.zeros_like(lag, dtype=torch.bool)
    chosen[lag.topk(count).indices] = True
    return chosen.view_as(mask) & mask
