"""What each kind of drafter is taught: to say all along the target's own sequences what the target says there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from mmspec.errors import ArgumentError
from mmspec.heads.eagle import EagleHead
from mmspec.heads.medusa import MedusaHeads
from mmspec.law import Law, Logits
from mmspec.target import FeatureTarget, split_sides
from mmspec.training.losses import Loss
from mmspec.training.prepared import Prepared


@dataclass(frozen=True)
class Reading:
    """The target's side of some of its own sequences of N tokens.

    - `tokens`: int64 [B, N]; `real`: bool [B, N], False behind the end of a row.
    - `p`: float32 [B, N, V], the law of each token.
    - `features`: [R, N, D], those the tokens were drawn from.
    - `law`, `head`: what makes laws of a drafter's guesses, in the same way.
    """

    tokens: Tensor
    real: Tensor
    p: Tensor
    features: Tensor
    law: Callable[[Logits, int], Tensor]
    head: Callable[[Tensor], Tensor]

    def laws(self, guesses: Tensor, first: int) -> Tensor:
        """The laws, float32 [B, W, V], that guesses [R, W, D] of features are for positions `first` and following."""
        return self.law(split_sides(self.head(guesses), len(guesses) > len(self.tokens)), first)


def look(target: FeatureTarget, tokens: Tensor) -> Tensor:
    """The features that tokens int64 [B, N] were drawn from, [R, N, D]; the target has read nothing yet."""
    with torch.no_grad():
        target.prefill()
        first = target.features()[:, -1:]
        target.forward(tokens[:, :-1], np.zeros(len(tokens), dtype=np.int64))
        return torch.cat([first, target.features()], dim=1)


def read(prepared: Prepared, tokens: Tensor, features: Tensor | None = None) -> Reading:
    """The target's side of sequences int64 [B, N] that it has made.

    Laws are those it draws from, but for top-k and top-p: what those cut off has no gradient.

    **Arguments:**

    - `features`: what `look` gave, [R, N, D]; None: the target reads the sequences now.
    """
    layout = prepared.layout
    settings = [replace(s, temperature=s.temperature or 1.0, top_k=0, top_p=1.0) for s in prepared.samplings]
    target = feature_target(prepared)
    made = Law(settings, layout.constraint, target.device)

    def law(logits: Logits, first: int) -> Tensor:
        batch, width = logits.cond.shape[:2]
        return made(logits, np.broadcast_to(first + np.arange(width), (batch, width)))

    tokens = tokens.to(target.device)
    features = look(target, tokens) if features is None else features.to(target.device)
    with torch.no_grad():
        p = law(split_sides(target.head(features), len(features) > len(tokens)), 0)
    ends = torch.isin(tokens, torch.tensor(sorted(layout.eos), dtype=tokens.dtype, device=tokens.device))
    real = ends.long().cumsum(1) - ends.long() == 0
    return Reading(tokens, real, p, features, law, target.head)


def feature_target(prepared: Prepared) -> FeatureTarget:
    """The target. **Raises:** `ArgumentError` when it shows no features, which training starts from."""
    target = prepared.make()
    if not isinstance(target, FeatureTarget):
        raise ArgumentError(f"no drafter can be trained for this model: {type(target).__name__} shows no features")
    return target


def mean_over(real: Tensor, values: Tensor) -> Tensor:
    """The mean of values [B, W] at real places."""
    return (values * real).sum() / real.sum().clamp(min=1)


def eagle_loss(head: EagleHead, reading: Reading, loss: Loss, depth: int) -> Tensor:
    """The mean loss over depths of drafts that begin anywhere.

    At depth d (from 0) place j holds token j and what was foretold of the feature it was drawn from, d guesses deep; it
    foretells feature j + 1 and the law of token j + 1.
    """
    features = reading.features[:, :-1].to(head.dtype)
    tokens = reading.tokens[:, :-1].repeat(len(features) // len(reading.tokens), 1)
    parts = []
    for d, guesses in enumerate(head.unroll(tokens, features, depth)):
        guesses = guesses[:, d:].to(reading.features)
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
