"""What each kind of drafter is taught: to say all along the target's own sequences what the target says there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from mmspec.heads.eagle import EagleHead
from mmspec.heads.medusa import MedusaHeads
from mmspec.law import Law, Logits
from mmspec.target import FeatureTarget, Target, split_sides
from mmspec.training.losses import Loss
from mmspec.training.prepared import Prepared


@dataclass(frozen=True)
class Reading:
    """The target's side of some sequences x of N tokens, read in one window.

    - `tokens`: int64 [B, N]; `real`: bool [B, N], False behind the end of a row.
    - `p`: float32 [B, N, V], the law of each token.
    - `features`: [R, N, D], those the tokens were drawn from; `prompt`: [R, T, D], of the prompt, with the first.
    - `law`, `head`: what makes laws of a drafter's guesses, in the same way.
    """

    tokens: Tensor
    real: Tensor
    p: Tensor
    features: Tensor
    prompt: Tensor
    law: Callable[[Logits, int], Tensor]
    head: Callable[[Tensor], Tensor]

    def laws(self, guesses: Tensor, first: int) -> Tensor:
        """The laws, float32 [B, W, V], that guesses [R, W, D] of features are for positions `first` and following."""
        return self.law(split_sides(self.head(guesses), len(guesses) > len(self.tokens)), first)


def read(prepared: Prepared, tokens: Tensor) -> Reading:
    """Has the target read sequences int64 [B, N] that it has made.

    Laws are those it draws from, but for top-k and top-p: what those cut off has no gradient.
    """
    layout = prepared.layout
    settings = [replace(s, temperature=s.temperature or 1.0, top_k=0, top_p=1.0) for s in prepared.samplings]
    target = prepared.make()
    made = Law(settings, layout.constraint, target.device)

    def law(logits: Logits, first: int) -> Tensor:
        batch, width = logits.cond.shape[:2]
        return made(logits, np.broadcast_to(first + np.arange(width), (batch, width)))

    with torch.no_grad():
        tokens = tokens.to(target.device)
        first = target.prefill()
        prompt = features_of(target)
        rest = target.forward(tokens[:, :-1], np.zeros(len(tokens), dtype=np.int64))
        features = torch.cat([prompt[:, -1:], features_of(target)], dim=1)
        both = [None if a is None or b is None else torch.cat([a, b], dim=1) for a, b in zip(first, rest, strict=True)]
        assert both[0] is not None
        p = law(Logits(both[0], both[1]), 0)
    ends = torch.isin(tokens, torch.tensor(sorted(layout.eos), dtype=tokens.dtype, device=tokens.device))
    real = ends.long().cumsum(1) - ends.long() == 0
    head = target.head if isinstance(target, FeatureTarget) else torch.nn.Identity()
    return Reading(tokens, real, p, features, prompt, law, head)


def features_of(target: Target) -> Tensor:
    """Those of the last call; of a target that shows none, none at all."""
    if isinstance(target, FeatureTarget):
        return target.features()
    return torch.zeros(1, 1, 0, device=target.device)


def mean_over(real: Tensor, values: Tensor) -> Tensor:
    """The mean of values [B, W] at real places."""
    return (values * real).sum() / real.sum().clamp(min=1)


def eagle_loss(head: EagleHead, reading: Reading, loss: Loss, depth: int) -> Tensor:
    """The mean loss over depths of drafts that begin anywhere.

    At depth d (from 0) place j holds token j and what was foretold of the feature it was drawn from, d guesses deep; it
    foretells feature j + 1 and the law of token j + 1.
    """
    before = reading.prompt[:, -1 - head.prefix : -1]
    before = torch.nn.functional.pad(before, (0, 0, head.prefix - before.shape[1], 0))
    features = torch.cat([before, reading.features[:, :-1]], dim=1).to(head.dtype)
    tokens = torch.nn.functional.pad(reading.tokens[:, :-1], (head.prefix, 0))
    tokens = tokens.repeat(len(features) // len(tokens), 1)
    parts = []
    for d, guesses in enumerate(head.unroll(tokens, features, depth)):
        guesses = guesses[:, head.prefix + d :].to(reading.features)
        q, f = reading.laws(guesses, 1 + d), reading.features[:, 1 + d :]
        parts.append(part(loss, reading, q, f, guesses, 1 + d))
    return torch.stack(parts).mean()


def medusa_loss(heads: MedusaHeads, reading: Reading, loss: Loss) -> Tensor:
    """The mean loss over heads: from the feature that token j was drawn from, head i foretells token j + 1 + i."""
    guessed = heads(reading.features).to(reading.features)
    parts = []
    for i in range(heads.count):
        guesses = guessed[:, : -1 - i, i]
        q, f = reading.laws(guesses, 1 + i), reading.features[:, 1 + i :]
        parts.append(part(loss, reading, q, f, guesses, 1 + i))
    return torch.stack(parts).mean()


def part(loss: Loss, reading: Reading, q: Tensor, f: Tensor, g: Tensor, first: int) -> Tensor:
    """The mean loss of laws and features for positions `first` and following; of features, of both sides'."""
    sides = len(g) // len(q)
    losses = [loss(reading.p[:, first:], q, *both) for both in zip(f.chunk(sides), g.chunk(sides), strict=True)]
    return mean_over(reading.real[:, first:], torch.stack(losses).mean(0))


def small_loss(model: nn.Module, prepared: Prepared, reading: Reading, loss: Loss) -> Tensor:
    """The mean loss of a smaller model, whose laws are not guided."""
    assert prepared.small is not None
    logits = prepared.small(model, reading.tokens)
    return mean_over(reading.real, loss(reading.p, reading.law(Logits(logits, None), 0), None, None))
