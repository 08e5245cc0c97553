"""The target distribution of continuous tokens: a Gaussian around a head's output for the noise of the position.

A diffusion or flow head turns the backbone's output h and noise w into a latent. The noise w of a position is fixed:
target and drafter use the same w at the same position in every iteration. Given h and w, a token's distribution is the
Gaussian N(mean(h, w), sigma**2) of the head's last step. It has a density, so drafts can be tested; and what is exact
given w is exact.
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

from mmspec.decoding.batch import BatchState
from mmspec.decoding.target import Target
from mmspec.errors import ArgumentError, ModelError
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.ops import TORCH
from mmspec.sampling.probs import Probs, dense
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import ACCEPT, RESAMPLE, CounterRNG, WindowRNG


@dataclass(frozen=True)
class Gaussian:
    """The distributions of the tokens of a window: independent Gaussians, and marks that are certain.

    Attributes:
        mean: Mean of the head's last step, float32 [B, W, D].
        log_sigma: Log standard deviation of the last step, float32 [B, W, D]; -inf where the head adds no noise there.
        path: Sum of log sigma over the earlier steps and the D coordinates, float32 [B, W]; 0 if there are none.
        marks: Marks: discrete properties of the token, float32 [B, W, M], such as whether it is the last one.
    """

    mean: Tensor
    log_sigma: Tensor
    path: Tensor
    marks: Tensor

    @staticmethod
    def deterministic(mean: Tensor, marks: Tensor | None = None) -> Gaussian:
        """Distributions of a head whose last step adds no noise."""
        empty = mean.new_empty(*mean.shape[:-1], 0) if marks is None else marks.to(mean.dtype)
        return Gaussian(mean, torch.full_like(mean, -torch.inf), mean.new_zeros(mean.shape[:-1]), empty)

    @staticmethod
    def unpack(p: Tensor, dim: int) -> Gaussian:
        """The inverse of `pack`, for tokens of `dim` coordinates."""
        return Gaussian(p[..., :dim], p[..., dim : 2 * dim], p[..., 2 * dim], p[..., 2 * dim + 1 :])

    def pack(self) -> Tensor:
        """All attributes side by side, float32 [B, W, 2 * D + 1 + M]; the loop handles distributions as one tensor."""
        parts = [self.mean, self.log_sigma, self.path[..., None], self.marks]
        return torch.cat([part.float() for part in parts], dim=-1)

    def first(self, count: int) -> Gaussian:
        """The distributions of the first `count` slots."""
        return Gaussian(*(part[:, :count] for part in (self.mean, self.log_sigma, self.path, self.marks)))


class LatentHead(Protocol):
    """Turns the backbone's output into distributions of latents.

    Attributes:
        dim: Coordinates D of a latent.
        marks: Number M of marks, the columns of a token after its latent.
        normals: Number of standard normal values in the noise of a token.
    """

    dim: int
    marks: int
    normals: int

    def __call__(self, logits: Logits, noise: Tensor, positions: NDArray[np.int64]) -> Gaussian:
        """The distributions of a window, all slots in one batch.

        Args:
            logits: The backbone's output [B, W, ...], conditional and, under guidance, unconditional.
            noise: Standard normal noise of each position, float32 [B, W, normals].
            positions: Host int64 [B, W].
        """
        ...


@dataclass(frozen=True)
class LatentModel:
    """A model of continuous tokens: a backbone with the prompts, and its head."""

    target: Target
    head: LatentHead


class LatentRule(ABC):
    """An acceptance rule for continuous tokens. Its tensors are float32.

    Attributes:
        truncates: Whether the first rejected draft ends the window, as exactness requires.
        dim: Coordinates D of a latent; set by the sampler that uses the rule.
    """

    truncates = True
    dim = 0

    def plain_tokens(self, length: int) -> int:
        """Number of a row's `length` tokens that are decoded plainly before drafting begins, at least 1."""
        return 1

    @abstractmethod
    def sample(self, dist: Gaussian, normal: Tensor) -> Tensor:
        """Latents [B, W, D] of the distributions, from standard normal values of the same shape."""

    @abstractmethod
    def accept_prob(self, p: Gaussian, q: Gaussian, x: Tensor) -> Tensor:
        """Acceptance probabilities [B, m] of drafts x [B, m, D]; values above 1 count as 1."""

    @abstractmethod
    def resample(self, p: Gaussian, q: Gaussian, x: Tensor, draws: WindowRNG) -> Tensor:
        """Replacements [B, m, D] of drafts x that are rejected."""

    def excess(self, p: Gaussian, q: Gaussian, x: Tensor, accept_prob: Tensor) -> Tensor | None:
        """Distance of the acceptance probabilities from the exact ones, [B, m]; None if the rule is exact."""
        return None

    def __call__(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        """`accept_prob` for packed distributions."""
        return self.accept_prob(Gaussian.unpack(p, self.dim), Gaussian.unpack(q, self.dim), x[..., : self.dim])


def normals(draws: WindowRNG, stream: int, count: int) -> Tensor:
    """Standard normal values of a window, float32 [B, W, count], which change with the iteration."""
    half = -(-count // 2)
    # Number 0 of a stream is reserved for the acceptance tests.
    u = draws.uniforms(stream, 1, 2 * half).add(2.0**-25)
    radius, angle = u[..., :half].log().mul(-2).sqrt(), u[..., half:] * (2 * torch.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], dim=-1)[..., :count]


class AcceptanceCounter:
    """Counts tested and accepted drafts by slot, and measures how far accepted drafts lie from the target's latents.

    The distance of a draft is the root mean square over coordinates of its difference from the target's mean.

    Attributes:
        accepted: Number of accepted drafts by slot.
        tested: Number of tested drafts by slot.
        distance: Sum of the distances of accepted drafts.
        farthest: Largest distance of an accepted draft.
    """

    def __init__(self) -> None:
        self.accepted, self.tested = np.zeros((2, 0), dtype=np.int64)
        self.distance, self.farthest = 0.0, 0.0

    def add(self, accepted: NDArray[np.bool_], tested: NDArray[np.bool_], distance: NDArray[np.float32]) -> None:
        """Adds a window; all arrays are [B, m]."""
        grow = max(accepted.shape[1] - len(self.accepted), 0)
        self.accepted, self.tested = np.pad(self.accepted, (0, grow)), np.pad(self.tested, (0, grow))
        self.accepted[: accepted.shape[1]] += (accepted & tested).sum(0)
        self.tested[: accepted.shape[1]] += tested.sum(0)
        counted = np.where(accepted & tested, distance, 0.0)
        self.distance += float(counted.sum())
        self.farthest = max(self.farthest, float(counted.max(initial=0.0)))


class LatentSampler:
    """The sampler of continuous tokens, a `mmspec.sampling.sampler.Sampler`.

    A token is a latent followed by its marks, [D + M].

    Args:
        head: The head; called once per window.
        noise: Random numbers of the rows. Samplers of the same seeds use the same noise.
        rule: Samples tokens and tests drafts.
        length: Positions per row, N; drafts past the end are not counted.

    Raises:
        ModelError: If the model returns latents that are not finite.
    """

    ROWS = ("_noise", "_logits")

    counts_all_rows = True  # in `counter`; so finished rows are dropped at once
    ops = TORCH  # no kernel knows its distributions

    def __init__(self, head: LatentHead, noise: CounterRNG, rule: LatentRule, length: int) -> None:
        rule.dim = head.dim
        self.head = head
        self.rule = rule
        self.counter = AcceptanceCounter()
        self._noise = noise
        self._length = length
        self._logits: Logits | None = None  # of the last window

    def before_join(self, other: LatentSampler, state: BatchState, other_state: BatchState) -> None:
        """Windows end together; the narrower one gets zeros in front."""
        if self._logits is None or other._logits is None:
            self._logits = other._logits = None
            return
        width = max(self._logits.cond.shape[1], other._logits.cond.shape[1])
        self._logits, other._logits = _aligned(self._logits, width), _aligned(other._logits, width)

    def __call__(self, logits: Logits, positions: Numbers) -> Tensor:
        """Packed distributions, float32 [B, W, 2 * D + 1 + M]; see `Gaussian.pack`."""
        self._logits = logits
        at = positions.host
        p = self.head(logits, self._noise.normals(at, self.head.normals), at).pack()
        if not bool(p[..., : self.head.dim].isfinite().all()):
            raise ModelError("the model returned latents that are not finite numbers")
        return p

    def with_head(self, head: LatentHead) -> LatentSampler:
        """A sampler of another head with the same rule and noise, and a new counter."""
        return LatentSampler(head, copy(self._noise), self.rule, self._length)

    def extrapolate(self, slots: NDArray[np.int64], positions: NDArray[np.int64]) -> Tensor:
        """Packed distributions of positions [B, k] past the last window, as if the backbone's output stayed the same.

        Args:
            slots: The slot of the last window whose output is used, host int64 [B].
            positions: Host int64 [B, k].
        """
        assert self._logits is not None
        index = torch.from_numpy(slots)

        def hold(output: Tensor) -> Tensor:
            last = output[torch.arange(len(output), device=output.device), index.to(output.device)]
            return last[:, None].expand(-1, positions.shape[1], *last.shape[1:])

        cond, uncond = self._logits
        held = Logits(hold(cond), None if uncond is None else hold(uncond))
        return self.head(held, self._noise.normals(positions, self.head.normals), positions).pack()

    def sample_from_normals(self, p: Tensor, normal: Tensor) -> Tensor:
        """Tokens [B, W, D + M] of packed distributions, from standard normal values [B, W, D]."""
        dist = Gaussian.unpack(p, self.head.dim)
        return torch.cat([self.rule.sample(dist, normal), dist.marks], dim=-1)

    def sample(self, p: Probs, draws: WindowRNG, stream: int = RESAMPLE) -> Tensor:
        return self.sample_from_normals(dense(p), normals(draws, stream, self.head.dim))

    def fixed_normals(self, positions: NDArray[np.int64]) -> Tensor:
        """Standard normal values [B, W, D] for `sample_from_normals` that are the same in every iteration."""
        return self._noise.normals(positions, self.head.dim, last=True)

    def verify(self, p: Probs, draft: Draft, rule: Accept, draws: WindowRNG) -> Verdict:
        """Tests drafts. The tokens after the first rejected one are coupled to the drafts of their slots.

        Marks are always those of the target. A draft with another mark ends the window, since the slots after it have
        read the wrong mark; its latent stays if it was accepted.
        """
        if rule is not self.rule:
            raise ArgumentError("rule is not the rule of the sampler; both must be the same object")
        p, drafted, dim = dense(p), dense(draft.q), self.head.dim
        m = p.shape[1] - 1
        tokens = self.sample(p, draws)
        if m == 0:
            return Verdict(tokens, Numbers(np.zeros(len(p), dtype=np.int64)), p, draft)
        target, q = Gaussian.unpack(p, dim).first(m), Gaussian.unpack(drafted, dim)
        x, marks = draft.tokens[..., :dim], draft.tokens[..., dim:]
        accept_prob = self.rule.accept_prob(target, q, x)
        passed = draws[ACCEPT][:, :m] < accept_prob
        tokens[:, :m, :dim] = torch.where(passed[..., None], x, self.rule.resample(target, q, x, draws))
        going = (marks == target.marks).all(-1)
        if self.rule.truncates:
            going = going & passed
        accepted = going.long().cumprod(-1).sum(-1).cpu().numpy()
        tested = (np.arange(m) <= accepted[:, None]) & (draws.positions.host[:, :m] < self._length)
        distance = (x - target.mean).square().mean(-1).sqrt()
        self.counter.add(passed.cpu().numpy(), tested, distance.cpu().numpy())
        excess = self.rule.excess(target, q, x, accept_prob.clamp(max=1.0))
        return Verdict(tokens, Numbers(accepted), p, draft, excess)


def _aligned(logits: Logits, width: int) -> Logits:
    """Logits [B, W, ...] with zeros in front, [B, width, ...]."""
    cond, uncond = (
        None if x is None else torch.cat([x.new_zeros(len(x), width - x.shape[1], *x.shape[2:]), x], dim=1)
        for x in logits
    )
    assert cond is not None
    return Logits(cond, uncond)
