"""Continuous Speculative Decoding (arXiv 2411.11925) as published for MAR: a draft model samples whole passes.

The target samples the first passes. Then the draft model samples passes of several latents each, and after every pass
whose number is a multiple of G, the target verifies all latents drafted since its last call, given only the latents
before them. Rejected latents are replaced in place. With 64 passes, G = 8 and 5 % of the passes by the target, 256
latents take 12 calls of the target and 60 of the draft model. The result follows neither model's distribution.

Here each latent has the guidance scale of its own pass; the published code uses that of the last pass for all latents
of a verification.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.continuous.sampler import AcceptanceCounter, Gaussian, LatentRule, normals
from mmspec.continuous.stats import LatentStats, with_counter
from mmspec.decoding.closed_batch import ClosedBatch
from mmspec.decoding.layout import Layout
from mmspec.decoding.step import UNWATCHED, Watch
from mmspec.sampling.rng import ACCEPT, DRAFT, RESAMPLE, CounterRNG
from mmspec.vision.mar.denoising import MARHead
from mmspec.vision.mar.masked import missing
from mmspec.vision.mar.target import MARTarget


class ModelWithHead:
    """The target or the draft model with its diffusion head.

    Args:
        target: A blind `MARTarget`, in which latents of one call do not see each other.
        head: Its diffusion head.
        noise: The random numbers of the rows.
        guided_as: For each position, the position whose guidance scale it has, host int64 [N].
    """

    def __init__(self, target: MARTarget, head: MARHead, noise: CounterRNG, guided_as: NDArray[np.int64]) -> None:
        self.target = target
        self._head = head
        self._noise = noise
        self._guided_as = guided_as

    def dists(self, positions: NDArray[np.int64]) -> Gaussian:
        """The distributions of positions [B, W], given the latents before the first of them."""
        conditions = self.target.conditions(torch.from_numpy(positions).to(self.target.device))
        return self._head(conditions, self._noise.normals(positions, self._head.normals), self._guided_as[positions])


class PublishedBatch(ClosedBatch):
    """Rows that are sampled by the published schedule with a draft model.

    A step is one call of the target: a pass of its own, or passes of the draft model and their verification.

    Args:
        target: The target, blind.
        head: The target's head.
        draft: The draft model, blind.
        draft_head: The draft model's head.
        rule: Samples and verifies latents; the target samples the first `rule.plain_tokens(passes)` passes.
        places: N.
        passes: S, 1 to N.
        verify_every: G.
        seeds: One per row.
        watch: What to show; the latents of a `Step` are in generation order.
    """

    def __init__(
        self,
        target: MARTarget,
        head: MARHead,
        draft: MARTarget,
        draft_head: MARHead,
        rule: LatentRule,
        places: int,
        passes: int,
        verify_every: int,
        seeds: Sequence[int],
        watch: Watch = UNWATCHED,
    ) -> None:
        super().__init__(seeds, Layout(places, cell=(head.dim,), dtype=torch.float32), target.device, watch)
        left = missing(places, passes)
        # All latents of a pass have the same guidance scale, by the number that is missing after it.
        sizes = -np.diff([places, *left])
        guided_as = np.repeat([places - max(n, 1) - 1 for n in left], sizes)
        self._goals: list[int] = np.cumsum(sizes).tolist()  # latents after each pass
        self._verifier = ModelWithHead(target, head, self.state.rng, guided_as)
        self._drafter = ModelWithHead(draft, draft_head, self.state.rng, guided_as)
        self._rule, self._dim, self._plain_passes = rule, head.dim, rule.plain_tokens(passes)
        self._verify_every, self._pass, self._counter = verify_every, 0, AcceptanceCounter()

    def stats(self) -> LatentStats:
        """The statistics so far."""
        return with_counter(super().stats(), self._counter)

    def step(self) -> bool:
        """Makes one call of the target; returns whether any row is running."""
        start = self._goals[self._pass - 1] if self._pass else 0
        if self._pass < self._plain_passes:
            sampled = self._sample(self._verifier, RESAMPLE)[1]
            self.meter.clock.lap("target")
        else:
            sampled = self._draft_and_verify(start)
        gained = self.state.commit(sampled, np.full(len(sampled), sampled.shape[1] - 1))
        self.meter.target_calls += 1
        self.meter.calls += gained > 0
        self.meter.tokens += gained
        if self._on_step is not None:
            self._on_step(self.state.step(self.meter.target_calls))
        return bool(self.state.is_running.any())

    def _sample(self, model: ModelWithHead, stream: int) -> tuple[Gaussian, Tensor]:
        """Makes a pass; returns its distributions and latents."""
        start, goal = (self._goals[self._pass - 1] if self._pass else 0), self._goals[self._pass]
        positions = self._positions(start, goal)
        draws = self.state.rng.window(positions, self._pass)
        self.meter.clock.lap("other")
        dist = model.dists(positions)
        sampled = self._put(self._rule.sample(dist, normals(draws, stream, self._dim)), start)
        self._pass += 1
        return dist, sampled

    def _draft_and_verify(self, start: int) -> Tensor:
        """Makes passes of the draft model from the latent `start` on, and verifies them; returns their latents."""
        drafts, meter, rule = list[tuple[Gaussian, Tensor]](), self.meter, self._rule
        while not drafts or ((self._pass - 1) % self._verify_every and self._pass < len(self._goals)):
            drafts.append(self._sample(self._drafter, DRAFT))
            self.draft_calls += 1
            meter.clock.lap("drafter")
        positions = self._positions(start, self._goals[self._pass - 1])
        draws = self.state.rng.window(positions, len(self._goals) + self._pass - 1)
        p, q = self._verifier.dists(positions), joined([dist for dist, _ in drafts])
        x = torch.cat([latents for _, latents in drafts], dim=1)
        meter.clock.lap("target")
        chance = rule.accept_prob(p, q, x)
        kept = draws[ACCEPT] < chance
        distance = (x - p.mean).square().mean(-1).sqrt()
        self._counter.add(kept.cpu().numpy(), np.ones(kept.shape, dtype=bool), distance.cpu().numpy())
        excess = rule.excess(p, q, x, chance.clamp(max=1.0))
        if excess is not None:
            meter.excess += excess.sum(1).double().cpu().numpy()
        sampled = self._put(torch.where(kept[..., None], x, rule.resample(p, q, x, draws)), start)
        meter.clock.lap("rule")
        return sampled

    def _positions(self, start: int, goal: int) -> NDArray[np.int64]:
        return np.tile(np.arange(start, goal), (len(self.state.ids), 1))

    def _put(self, latents: Tensor, at: int) -> Tensor:
        """Shows both models latents [B, n, D] from the latent `at` on; returns them."""
        for model in (self._verifier, self._drafter):
            model.target.put(latents, np.full(len(latents), at))
        return latents


def joined(dists: list[Gaussian]) -> Gaussian:
    """The distributions of several passes, concatenated to one window."""
    parts = [(dist.mean, dist.log_sigma, dist.path, dist.marks) for dist in dists]
    return Gaussian(*(torch.cat(part, dim=1) for part in zip(*parts, strict=True)))
