"""Continuous Speculative Decoding as its code runs it on MAR: a smaller MAR draws whole passes, several places each.

The first passes are the target's. Then the draft goes ahead, and after every pass whose number divides by some G the
target looks at all places drafted since it last looked: once, from the latents before them. What it does not keep it
replaces in place. With 64 passes, G = 8 and 5 % of the passes its own, that is 12 calls of the target and 60 of the
draft for 256 latents (arXiv 2411.11925). What comes of it follows neither model's distribution.

Each place is guided here as in its own pass; the published code guides all that are looked at as in the last one.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.continuous.run import LatentStats, with_counter
from mmspec.continuous.sampler import AcceptanceCounter, Gaussian, LatentRule, normals
from mmspec.decoding.batch import Step
from mmspec.decoding.loop import OnStep
from mmspec.decoding.stats import Meter
from mmspec.sampling.rng import ACCEPT, DRAFT, RESAMPLE, CounterRNG
from mmspec.vision.mar.denoising import MARHead
from mmspec.vision.mar.masked import missing
from mmspec.vision.mar.target import MARTarget


class Side:
    """A model and its head, either of the two.

    Args:
        target: Which hides from every place of a call what is drawn in it.
        head: Its head.
        noise: Of the rows.
        guided_as: The position whose guidance each position has, host int64 [N].
    """

    def __init__(self, target: MARTarget, head: MARHead, noise: CounterRNG, guided_as: NDArray[np.int64]) -> None:
        self.target = target
        self._head = head
        self._noise = noise
        self._guided_as = guided_as

    def dists(self, positions: NDArray[np.int64]) -> Gaussian:
        """The distributions of positions [B, W], all after what is there before the first of them."""
        said = self.target.say(torch.from_numpy(positions).to(self.target.device))
        return self._head(said, self._noise.normals(positions, self._head.normals), self._guided_as[positions])


def decode_published(
    target: MARTarget,
    head: MARHead,
    draft: MARTarget,
    draft_head: MARHead,
    rule: LatentRule,
    seeds: list[int],
    places: int,
    passes: int,
    look_every: int,
    on_step: OnStep | None = None,
) -> tuple[Tensor, LatentStats]:
    """Latents [B, N, D] in the order of their drawing, and what they cost.

    Args:
        target: The target, blind.
        draft: The model that drafts, blind as well.
        head: The target's head.
        draft_head: The draft's head.
        rule: Draws and tests; its `alone` says how many passes are the target's.
        places: N.
        passes: S, 1 to N.
        look_every: G.
    """
    left = missing(places, passes)
    # All places of a pass are guided alike, by how many are missing after it.
    sizes = -np.diff([places, *left])
    guided_as = np.repeat([places - max(n, 1) - 1 for n in left], sizes)
    noise, meter, counter = CounterRNG(seeds, target.device), Meter(target.device, len(seeds)), AcceptanceCounter()
    ours, theirs = Side(target, head, noise, guided_as), Side(draft, draft_head, noise, guided_as)
    tokens = torch.zeros(len(seeds), places, head.dim, device=target.device)
    alone, done, looked, draft_calls = rule.alone(passes), 0, 0, 0
    dists: list[Gaussian] = []

    def put(latents: Tensor, at: int) -> None:
        tokens[:, at : at + latents.shape[1]] = latents
        for side in (ours, theirs):
            side.target.put(latents, np.full(len(latents), at))

    for s, goal in enumerate(done_after(sizes)):
        positions = np.tile(np.arange(done, goal), (len(seeds), 1))
        draws = noise.window(positions, s)
        meter.clock.lap("other")
        if s < alone:
            p = ours.dists(positions)
            put(rule.sample(p, normals(draws, RESAMPLE, head.dim)), done)
            meter.clock.lap("target")
        else:
            q = theirs.dists(positions)
            put(rule.sample(q, normals(draws, DRAFT, head.dim)), done)
            dists.append(q)
            draft_calls += 1
            meter.clock.lap("drafter")
        done = goal
        if dists and (s % look_every == 0 or done == places):
            positions = np.tile(np.arange(looked, done), (len(seeds), 1))
            draws = noise.window(positions, passes + s)
            p, q, x = ours.dists(positions), joined(dists), tokens[:, looked:done]
            meter.clock.lap("target")
            chance = rule.accept_prob(p, q, x)
            kept = draws[ACCEPT] < chance
            distance = (x - p.mean).square().mean(-1).sqrt()
            counter.add(kept.cpu().numpy(), np.ones(kept.shape, dtype=bool), distance.cpu().numpy())
            excess = rule.excess(p, q, x, chance.clamp(max=1.0))
            if excess is not None:
                meter.excess += excess.sum(1).double().cpu().numpy()
            put(torch.where(kept[..., None], x, rule.resample(p, q, x, draws)), looked)
            dists = []
            meter.clock.lap("rule")
        if not dists:
            meter.nfe += 1
            meter.calls += 1
            meter.tokens += done - looked
            looked = done
            if on_step is not None:
                so_far = [row[:done].clone() for row in tokens]
                on_step(Step(meter.nfe, done * len(seeds), places * len(seeds), so_far))
    return tokens, with_counter(meter.stats(draft_calls), counter)


def done_after(sizes: NDArray[np.int64]) -> list[int]:
    """How many places are there after each pass."""
    return np.cumsum(sizes).tolist()


def joined(dists: list[Gaussian]) -> Gaussian:
    """The distributions of several passes as those of one window."""
    parts = [(dist.mean, dist.log_sigma, dist.path, dist.marks) for dist in dists]
    return Gaussian(*(torch.cat(part, dim=1) for part in zip(*parts, strict=True)))
