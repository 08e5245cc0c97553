"""Continuous Speculative Decoding (arXiv 2411.11925) as published for MAR: a draft model samples whole passes.

The target samples the first passes. Then the draft model samples passes of several latents each, and after every pass
whose number is a multiple of G, the target verifies all latents drafted since its last call, given only the latents
before them. Rejected latents are replaced in place. With 64 passes, G = 8 and 5 % of the passes by the target, 256
latents take 12 calls of the target and 60 of the draft model. The result follows neither model's distribution.

Here each latent has the guidance scale of its own pass; the published code uses that of the last pass for all latents
of a verification.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.continuous.sampler import AcceptanceCounter, Gaussian, LatentRule, normals
from mmspec.continuous.stats import LatentStats, with_counter
from mmspec.decoding.stats import Meter
from mmspec.decoding.step import OnStep, Step
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


def decode_published(
    target: MARTarget,
    head: MARHead,
    draft: MARTarget,
    draft_head: MARHead,
    rule: LatentRule,
    seeds: list[int],
    places: int,
    passes: int,
    verify_every: int,
    on_step: OnStep | None = None,
) -> tuple[Tensor, LatentStats]:
    """Samples latents by the published schedule with a draft model.

    Args:
        target: The target, blind.
        head: The target's head.
        draft: The draft model, blind.
        draft_head: The draft model's head.
        rule: Samples and verifies latents; the target samples the first `rule.plain_tokens(passes)` passes.
        seeds: One per row.
        places: N.
        passes: S, 1 to N.
        verify_every: G.
        on_step: Called after every target call.

    Returns:
        Latents [B, N, D] in generation order, and the stats.
    """
    left = missing(places, passes)
    # All latents of a pass have the same guidance scale, by the number that is missing after it.
    sizes = -np.diff([places, *left])
    guided_as = np.repeat([places - max(n, 1) - 1 for n in left], sizes)
    noise, meter, counter = CounterRNG(seeds, target.device), Meter(target.device, len(seeds)), AcceptanceCounter()
    verifier = ModelWithHead(target, head, noise, guided_as)
    drafter = ModelWithHead(draft, draft_head, noise, guided_as)
    tokens = torch.zeros(len(seeds), places, head.dim, device=target.device)
    plain_passes, done, verified, draft_calls = rule.plain_tokens(passes), 0, 0, 0
    dists: list[Gaussian] = []

    def put(latents: Tensor, at: int) -> None:
        tokens[:, at : at + latents.shape[1]] = latents
        for model in (verifier, drafter):
            model.target.put(latents, np.full(len(latents), at))

    for s, goal in enumerate(done_after(sizes)):
        positions = np.tile(np.arange(done, goal), (len(seeds), 1))
        draws = noise.window(positions, s)
        meter.clock.lap("other")
        if s < plain_passes:
            p = verifier.dists(positions)
            put(rule.sample(p, normals(draws, RESAMPLE, head.dim)), done)
            meter.clock.lap("target")
        else:
            q = drafter.dists(positions)
            put(rule.sample(q, normals(draws, DRAFT, head.dim)), done)
            dists.append(q)
            draft_calls += 1
            meter.clock.lap("drafter")
        done = goal
        if dists and (s % verify_every == 0 or done == places):
            positions = np.tile(np.arange(verified, done), (len(seeds), 1))
            draws = noise.window(positions, passes + s)
            p, q, x = verifier.dists(positions), joined(dists), tokens[:, verified:done]
            meter.clock.lap("target")
            chance = rule.accept_prob(p, q, x)
            kept = draws[ACCEPT] < chance
            distance = (x - p.mean).square().mean(-1).sqrt()
            counter.add(kept.cpu().numpy(), np.ones(kept.shape, dtype=bool), distance.cpu().numpy())
            excess = rule.excess(p, q, x, chance.clamp(max=1.0))
            if excess is not None:
                meter.excess += excess.sum(1).double().cpu().numpy()
            put(torch.where(kept[..., None], x, rule.resample(p, q, x, draws)), verified)
            dists = []
            meter.clock.lap("rule")
        if not dists:
            meter.nfe += 1
            meter.calls += 1
            meter.tokens += done - verified
            verified = done
            if on_step is not None:
                so_far = [row[:done].clone() for row in tokens]
                on_step(Step(meter.nfe, done * len(seeds), places * len(seeds), so_far))
    return tokens, with_counter(meter.stats(draft_calls), counter)


def done_after(sizes: NDArray[np.int64]) -> list[int]:
    """The number of latents after each pass, from the number that each pass samples."""
    return np.cumsum(sizes).tolist()


def joined(dists: list[Gaussian]) -> Gaussian:
    """The distributions of several passes, concatenated to one window."""
    parts = [(dist.mean, dist.log_sigma, dist.path, dist.marks) for dist in dists]
    return Gaussian(*(torch.cat(part, dim=1) for part in zip(*parts, strict=True)))
