"""The distribution of a token that is a vector: a Gaussian around what the head makes of noise that belongs to the position.

A head turns the backbone's output h and noise w into a latent. The noise of a position never changes, whoever asks:
target and drafter see the same w at the same place, in every iteration. Given all of it, a token's distribution is the Gaussian
N(mean(h, w), sigma**2) of the head's last step, which has a density, so that drafts can be tested. What is exact given
w is exact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.target import Target
from mmspec.errors import ArgumentError, ModelError
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.logits import Logits
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import ACCEPT, RESAMPLE, CounterRNG, WindowRNG


@dataclass(frozen=True)
class Gaussian:
    """The distributions of a window's slots.

    Attributes:
        mean: float32 [B, W, D], of the head's last step.
        log_sigma: float32 [B, W, D], of the same; -inf where the head adds no noise there.
        path: float32 [B, W], the sum of log sigma over the steps before and the D coordinates; 0 where there are none.
        marks: float32 [B, W, M], what is certain about the token besides: whether it is the last, of which kind it is.
    """

    mean: Tensor
    log_sigma: Tensor
    path: Tensor
    marks: Tensor

    @staticmethod
    def certain(mean: Tensor, marks: Tensor | None = None) -> Gaussian:
        """Of a head whose last step adds no noise."""
        empty = mean.new_empty(*mean.shape[:-1], 0) if marks is None else marks.to(mean.dtype)
        return Gaussian(mean, torch.full_like(mean, -torch.inf), mean.new_zeros(mean.shape[:-1]), empty)

    @staticmethod
    def unpack(p: Tensor, dim: int) -> Gaussian:
        """From what `pack` gave, for tokens of `dim` coordinates."""
        return Gaussian(p[..., :dim], p[..., dim : 2 * dim], p[..., 2 * dim], p[..., 2 * dim + 1 :])

    def pack(self) -> Tensor:
        """All of it next to each other, float32 [B, W, 2 * D + 1 + M]: the loop passes distributions on as one tensor."""
        parts = [self.mean, self.log_sigma, self.path[..., None], self.marks]
        return torch.cat([part.float() for part in parts], dim=-1)

    def first(self, count: int) -> Gaussian:
        """Those of the first `count` slots."""
        return Gaussian(*(part[:, :count] for part in (self.mean, self.log_sigma, self.path, self.marks)))


class Head(Protocol):
    """Turns what the backbone says into distributions of latents.

    Attributes:
        dim: D, coordinates of a latent.
        marks: M, columns of the token after them.
        normals: Standard normal numbers that a token's noise consists of.
    """

    dim: int
    marks: int
    normals: int

    def __call__(self, logits: Logits, noise: Tensor, positions: NDArray[np.int64]) -> Gaussian:
        """The distributions of a window, all slots in one batch.

        Args:
            logits: The backbone's outputs, [B, W, ...] on one or both sides of the guidance.
            noise: float32 [B, W, normals], standard normal, of each slot's position.
            positions: Host int64 [B, W].
        """
        ...


@dataclass(frozen=True)
class LatentModel:
    """A model of vectors: a backbone with the prompts, and its head."""

    target: Target
    head: Head


class LatentRule(ABC):
    """An acceptance rule for tokens that are vectors. Everything it gets and gives is float32.

    Attributes:
        truncates: Whether the first draft that fails ends the window, as it must where the outcome is to be exact.
        dim: D; the distribution that uses the rule sets it.
    """

    truncates = True
    dim = 0

    def alone(self, length: int) -> int:
        """How many of a row's `length` tokens the target draws by itself before drafting begins, at least one."""
        return 1

    @abstractmethod
    def draw(self, dist: Gaussian, normal: Tensor) -> Tensor:
        """A token of each distribution, [B, W, D], made with standard normal numbers of that shape."""

    @abstractmethod
    def chance(self, p: Gaussian, q: Gaussian, x: Tensor) -> Tensor:
        """The probability [B, m] with which drafts x [B, m, D] are kept; above 1 counts as 1."""

    @abstractmethod
    def resample(self, p: Gaussian, q: Gaussian, x: Tensor, draws: WindowRNG) -> Tensor:
        """What stands in for drafts that are not kept, [B, m, D]."""

    def excess(self, p: Gaussian, q: Gaussian, x: Tensor, chance: Tensor) -> Tensor | None:
        """How far the probability lies from the exact test's, [B, m]; None where it is the exact one."""
        return None

    def __call__(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        """`chance`, of packed distributions."""
        return self.chance(Gaussian.unpack(p, self.dim), Gaussian.unpack(q, self.dim), x[..., : self.dim])


def normals(draws: WindowRNG, stream: int, count: int) -> Tensor:
    """Standard normal numbers of a window, float32 [B, W, count], that change with the iteration."""
    half = -(-count // 2)
    # Number 0 of a stream is the one that coins take.
    u = draws.uniforms(stream, 1, 2 * half).add(2.0**-25)
    radius, angle = u[..., :half].log().mul(-2).sqrt(), u[..., half:] * (2 * torch.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], dim=-1)[..., :count]


class Account:
    """What became of the drafts: by slot how many were tested and kept, and how far kept ones lay from the target's.

    A distance is the root mean square over the coordinates between a kept draft and the mean of the target distribution.
    """

    def __init__(self) -> None:
        self.kept, self.tested = np.zeros((2, 0), dtype=np.int64)
        self.distance, self.farthest = 0.0, 0.0

    def add(self, kept: NDArray[np.bool_], tested: NDArray[np.bool_], distance: NDArray[np.float32]) -> None:
        """One window: all are [B, m]."""
        grow = max(kept.shape[1] - len(self.kept), 0)
        self.kept, self.tested = np.pad(self.kept, (0, grow)), np.pad(self.tested, (0, grow))
        self.kept[: kept.shape[1]] += (kept & tested).sum(0)
        self.tested[: kept.shape[1]] += tested.sum(0)
        far = np.where(kept & tested, distance, 0.0)
        self.distance += float(far.sum())
        self.farthest = max(self.farthest, float(far.max(initial=0.0)))


class LatentSampler:
    """The distribution of tokens that are vectors, as the loop wants it. A token is its latent and its marks, [D + M].

    Args:
        head: Called once per window.
        noise: Of the rows; whoever is to see the same noise gets one of the same seeds.
        rule: Draws tokens and tests drafts.
        length: Positions per row, N; what lies after is not counted.

    Raises:
        ModelError: When the model gives what is no number.
    """

    def __init__(self, head: Head, noise: CounterRNG, rule: LatentRule, length: int) -> None:
        rule.dim = head.dim
        self.head = head
        self.rule = rule
        self.account = Account()
        self._noise = noise
        self._length = length
        self._seen: Logits | None = None

    def select_rows(self, row_ids: Tensor) -> None:
        self._noise.select_rows(row_ids.tolist())
        if self._seen is not None:
            cond, uncond = self._seen
            self._seen = Logits(cond[row_ids], None if uncond is None else uncond[row_ids])

    def __call__(self, logits: Logits, positions: NDArray[np.int64]) -> Tensor:
        """Packed distributions, float32 [B, W, 2 * D + 1 + M]; see `Gaussian.pack`."""
        self._seen = logits
        p = self.head(logits, self._noise.normals(positions, self.head.normals), positions).pack()
        if not bool(p[..., : self.head.dim].isfinite().all()):
            raise ModelError("the model gave latents that are not finite numbers")
        return p

    def with_head(self, head: Head) -> LatentSampler:
        """A sampler of another head with the same rule, the same noise and an account of its own."""
        return LatentSampler(head, copy(self._noise), self.rule, self._length)

    def ahead(self, slots: NDArray[np.int64], positions: NDArray[np.int64]) -> Tensor:
        """Packed distributions of positions [B, k] that the backbone has not come to: as if its output stayed what it was.

        Args:
            slots: Host int64 [B], which slot of the last window's output.
        """
        assert self._seen is not None
        index = torch.from_numpy(slots)

        def stay(side: Tensor) -> Tensor:
            there = side[torch.arange(len(side), device=side.device), index.to(side.device)]
            return there[:, None].expand(-1, positions.shape[1], *there.shape[1:])

        cond, uncond = self._seen
        held = Logits(stay(cond), None if uncond is None else stay(uncond))
        return self.head(held, self._noise.normals(positions, self.head.normals), positions).pack()

    def draw(self, p: Tensor, normal: Tensor) -> Tensor:
        """Tokens [B, W, D + M] of packed distributions, made with standard normal numbers [B, W, D]."""
        dist = Gaussian.unpack(p, self.head.dim)
        return torch.cat([self.rule.draw(dist, normal), dist.marks], dim=-1)

    def sample(self, p: Tensor, draws: WindowRNG, stream: int = RESAMPLE) -> Tensor:
        return self.draw(p, normals(draws, stream, self.head.dim))

    def steady(self, positions: NDArray[np.int64]) -> Tensor:
        """Numbers for `draw` that stay the same in every iteration."""
        return self._noise.normals(positions, self.head.dim, last=True)

    def verify(self, p: Tensor, draft: Draft, rule: Accept, draws: WindowRNG) -> Verdict:
        """Tests drafts; after the first that fails stand tokens coupled to what was drafted there.

        A mark is the target's, whatever the draft says. A draft with another mark ends the window, with its latent
        where that was kept: the slots after it have read the wrong mark.
        """
        if rule is not self.rule:
            raise ArgumentError("rule is not the one that this distribution draws its tokens by; give both the same")
        m, dim = p.shape[1] - 1, self.head.dim
        tokens = self.sample(p, draws)
        if m == 0:
            return Verdict(tokens, np.zeros(len(p), dtype=np.int64), p, draft)
        target, q = Gaussian.unpack(p, dim).first(m), Gaussian.unpack(draft.q, dim)
        x, marks = draft.tokens[..., :dim], draft.tokens[..., dim:]
        chance = self.rule.chance(target, q, x)
        kept = draws[ACCEPT][:, :m] < chance
        tokens[:, :m, :dim] = torch.where(kept[..., None], x, self.rule.resample(target, q, x, draws))
        going = (marks == target.marks).all(-1)
        if self.rule.truncates:
            going = going & kept
        accepted = going.long().cumprod(-1).sum(-1).cpu().numpy()
        inside = (np.arange(m) <= accepted[:, None]) & (draws.positions[:, :m] < self._length)
        distance = (x - target.mean).square().mean(-1).sqrt()
        self.account.add(kept.cpu().numpy(), inside, distance.cpu().numpy())
        excess = self.rule.excess(target, q, x, chance.clamp(max=1.0))
        return Verdict(tokens, accepted, p, draft, excess)
