"""The distribution of a position: what a model's logits become before a token is drawn.

The order is fixed: guidance (in float32), tokens forbidden at the position, temperature, top-k, top-p, softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.errors import ArgumentError
from mmspec.kernels.backend import choose
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.constraints import Constraint
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.rejection import Draft, Verdict, sample, verify
from mmspec.sampling.rng import ACCEPT, RESAMPLE, WindowRNG

NO_END = 2**62


class TokenSampler:
    """Turns logits into probabilities, each row with its own settings.

    Args:
        rows: The settings of each row.
        constraint: Allowed tokens by position, or None.

    Raises:
        ArgumentError: For a constraint of another number of rows.
    """

    def __init__(self, rows: Sequence[SamplingParams], constraint: Constraint | None, device: torch.device) -> None:
        def column(values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)[:, None, None]

        if constraint is not None and constraint.rows not in (None, len(rows)):
            raise ArgumentError(f"constraint is for {constraint.rows} rows, and there are {len(rows)}")
        self.constraint = constraint
        self.guidance = column([r.guidance_scale for r in rows])
        self.temperature = column([r.temperature or 1.0 for r in rows])
        self.guidance_end = column([NO_END if r.guidance_end is None else r.guidance_end for r in rows], torch.int64)
        self.greedy = column([r.temperature == 0 for r in rows], torch.bool)
        self.top_k = column([r.top_k for r in rows], torch.int64)
        self.top_p = column([r.top_p for r in rows])
        self._any_greedy = any(r.temperature == 0 for r in rows)
        self._all_greedy = all(r.temperature == 0 for r in rows)
        self._any_temperature = any(r.temperature not in (0, 1) for r in rows)
        self._guidance_ends = any(r.guidance_end is not None for r in rows)
        self._max_k = max((r.top_k for r in rows), default=0)
        self._any_p = any(r.top_p < 1 for r in rows)

    def select_rows(self, row_ids: Tensor) -> None:
        """Drops all rows but these (int64 [rows'])."""
        for name in ("guidance", "guidance_end", "temperature", "greedy", "top_k", "top_p"):
            setattr(self, name, getattr(self, name)[row_ids])
        if self.constraint is not None:
            self.constraint = self.constraint.select_rows(row_ids)

    def sample(self, p: Tensor, draws: WindowRNG, stream: int = RESAMPLE) -> Tensor:
        """Draws from probabilities [B, W, V]: int64 [B, W]."""
        return sample(p, draws[stream])

    def verify(self, p: Tensor, draft: Draft, rule: Accept, draws: WindowRNG) -> Verdict:
        """Tests a draft under probabilities [B, W, V]; see `mmspec.sampling.rejection.verify`."""
        return verify(p, draft, rule, draws[ACCEPT], draws[RESAMPLE])

    def __call__(self, logits: Logits, positions: NDArray[np.int64]) -> Tensor:
        """Probabilities float32 [B, W, V]; a greedy row gets all its mass on one token.

        Where the Triton kernels run they are not written out: see `mmspec.sampling.lazy_probs`. Kernels know no gradients.

        Args:
            logits: Of the window.
            positions: int64 [B, W], the position each slot stands for.
        """
        if choose(logits.cond.device.type) == "triton" and not logits.cond.requires_grad:
            return self._lazy(logits, positions)
        z = logits.cond.float()
        if logits.uncond is not None:
            # Where a model itself forbids a token both sides are -inf, and their difference would be NaN.
            scale = self.guidance
            if self._guidance_ends:
                here = torch.from_numpy(positions).to(z.device)[..., None]
                scale = torch.where(here < self.guidance_end, scale, 1.0)
            z = torch.lerp(logits.uncond.float(), z, scale).masked_fill_(z.isneginf(), -torch.inf)
        if self.constraint is not None:
            z = z.masked_fill(self.constraint.mask(positions), -torch.inf)
        if self._all_greedy:
            return _one_hot(z)
        greedy = _one_hot(z) if self._any_greedy else None
        if self._any_temperature:
            z = z / self.temperature
        if self._max_k:
            z = keep_top_k(z, self.top_k, self._max_k)
        p = z.softmax(-1)
        if self._any_p:
            p = keep_top_p(p, self.top_p)
        return p if greedy is None else torch.where(self.greedy, greedy, p)

    def _lazy(self, logits: Logits, positions: NDArray[np.int64]) -> Tensor:
        from mmspec.kernels.fused_sampler import Settings
        from mmspec.sampling.lazy_probs import LazyProbs

        device = logits.cond.device
        scale = self.guidance[:, 0].expand(positions.shape)
        if self._guidance_ends:
            here = torch.from_numpy(positions).to(device, non_blocking=True)
            scale = torch.where(here < self.guidance_end[:, 0], scale, 1.0)
        settings = Settings(
            scale.contiguous(),
            self.temperature.masked_fill(self.greedy, 0.0).flatten(),
            self.top_k.flatten().int() if self._max_k else None,
            self.top_p.flatten() if self._any_p else None,
            None if self.constraint is None else self.constraint.kinds(positions).int(),
            None if self.constraint is None else self.constraint.allowed,
        )
        return LazyProbs.of(logits, settings)


def keep_top_k(z: Tensor, k: Tensor, largest: int) -> Tensor:
    """Sets logits below the row's k-th largest to -inf; `k` int64 [B, 1, 1] (0: all), `largest` its maximum."""
    vocab = z.shape[-1]
    ranks = k.clamp(1, min(largest, vocab)).expand(*z.shape[:-1], 1)
    if z.device.type == "cpu":
        # NumPy's selection takes half the time of a top-k, which also sorts.
        places = np.unique(vocab - ranks.numpy())
        floor = torch.from_numpy(np.partition(z.detach().numpy(), places, axis=-1)).gather(-1, vocab - ranks)
    else:
        floor = z.topk(min(largest, vocab), dim=-1).values.gather(-1, ranks - 1)
    floor = floor.masked_fill(k == 0, -torch.inf)
    return z.masked_fill(z < floor, -torch.inf)


def keep_top_p(p: Tensor, top_p: Tensor) -> Tensor:
    """Keeps, in descending order, every token before which less than `top_p` of the mass lies; renormalises."""
    ordered, index = p.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    ordered = ordered.masked_fill((before >= top_p) & (before > 0), 0.0)
    kept = torch.zeros_like(p).scatter_(-1, index, ordered)
    return torch.where(top_p < 1, kept / kept.sum(-1, keepdim=True), p)


def _one_hot(z: Tensor) -> Tensor:
    best = z.argmax(-1, keepdim=True)
    # A row of NaN, or without an allowed token, becomes NaN: greedy decoding too says that the target is broken.
    mass = torch.where(z.gather(-1, best).isfinite(), 1.0, torch.nan)
    return torch.zeros_like(z).scatter_(-1, best, mass)


class Sampler(Protocol):
    """What the loop knows of a kind of token: its distribution at a position, how it is drawn, how a draft of it is tested."""

    def __call__(self, logits: Logits, positions: NDArray[np.int64]) -> Tensor:
        """The distribution at each slot of a window, [B, W, ...], from what the target said there."""
        ...

    def sample(self, p: Tensor, draws: WindowRNG, stream: int = RESAMPLE) -> Tensor:
        """A token of each distribution, [B, W, *cell], with the numbers of a stream."""
        ...

    def verify(self, p: Tensor, draft: Draft, rule: Accept, draws: WindowRNG) -> Verdict:
        """Tests the drafts from left to right and resamples the first that fails, or the free slot after the last."""
        ...

    def select_rows(self, row_ids: Tensor) -> None:
        """Drops all rows but these."""
        ...
