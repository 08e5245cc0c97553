"""Samplers: the target distribution of a position from its logits, samples from it, and the verification of drafts.

The order of operations is fixed: guidance (in float32), forbidden tokens, temperature, top-k, top-p, min-p, typical-p.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.errors import ArgumentError
from mmspec.kernels.backend import choose
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.constraints import Constraint, ForcedCells
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.ops import TORCH, TorchOps
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import Probs
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import ACCEPT, DRAFT, RESAMPLE, WindowRNG
from mmspec.sampling.truncation import keep_min_p, keep_top_p, keep_typical

if TYPE_CHECKING:
    from mmspec.sampling.lazy_verification import PendingTokens, PendingVerdict

NO_END = 2**62
_BY_ROW = ("guidance", "guidance_end", "temperature", "greedy", "top_k", "top_p", "min_p", "typical_p")
_ANY = (
    "_any_greedy", "_any_temperature", "_guidance_ends", "_any_unguided", "_any_p", "_any_min_p", "_any_typical_p",
)  # fmt: skip


def ops_on(device: torch.device) -> TorchOps:
    """The operations where a batch, or a sampler, has its tensors."""
    if choose(device.type) != "triton":
        return TORCH
    from mmspec.sampling.kernel_ops import KERNELS  # Triton may be missing, and takes its time on a CPU

    return KERNELS


class Sampler(Protocol):
    """The interface of samplers, one per kind of token: target distributions, samples from them, tests of drafts."""

    @property
    def ops(self) -> TorchOps:
        """What is done with the distributions."""
        ...

    def __call__(self, logits: Logits, positions: Numbers) -> Probs:
        """The target distribution at each slot of a window, [B, W, ...], from the target's output there."""
        ...

    def sample(self, p: Probs, rng: WindowRNG, stream: int = RESAMPLE) -> Tensor:
        """One token of each distribution, [B, W, *cell], with the random numbers of a stream."""
        ...

    def verify(self, p: Probs, draft: Draft, rule: Accept, rng: WindowRNG) -> Verdict:
        """Tests the drafts from left to right; resamples the first rejected one, or samples the bonus token."""
        ...


class TokenSampler:
    """Turns logits into probabilities, each row with its own sampling parameters.

    Args:
        params: The sampling parameters of each row.
        constraint: Allowed tokens by position, or None.
        device: The device of the logits.

    Attributes:
        ops: What is done with the probabilities, by kernels or in torch.

    Raises:
        ArgumentError: If the constraint is for another number of rows.
    """

    ROWS = ("constraint", *_BY_ROW)

    def __init__(self, params: Sequence[SamplingParams], constraint: Constraint | None, device: torch.device) -> None:
        # Rows share their parameters as a rule; each object is read once.
        kinds = list({id(r): r for r in params}.values())
        number = {id(r): i for i, r in enumerate(kinds)}
        of_row = torch.tensor([number[id(r)] for r in params], dtype=torch.int64)

        def column(values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.tensor(values, dtype=dtype)[of_row].to(device)[:, None, None]

        if constraint is not None and constraint.batch_size not in (None, len(params)):
            raise ArgumentError(f"constraint is for {constraint.batch_size} rows, and there are {len(params)}")
        self.constraint = constraint
        self.ops = ops_on(device)
        self.guidance = column([r.guidance_scale for r in kinds])
        self.temperature = column([r.temperature or 1.0 for r in kinds])
        self.guidance_end = column([NO_END if r.guidance_end is None else r.guidance_end for r in kinds], torch.int64)
        self.greedy = column([r.temperature == 0 for r in kinds], torch.bool)
        self.top_k = column([r.top_k for r in kinds], torch.int64)
        self.top_p = column([r.top_p for r in kinds])
        self.min_p = column([r.min_p for r in kinds])
        self.typical_p = column([r.typical_p for r in kinds])
        self._any_greedy = any(r.temperature == 0 for r in kinds)
        self._all_greedy = all(r.temperature == 0 for r in kinds)
        self._any_temperature = any(r.temperature not in (0, 1) for r in kinds)
        self._guidance_ends = any(r.guidance_end is not None for r in kinds)
        self._any_unguided = self._guidance_ends or any(r.guidance_scale == 1 for r in kinds)
        self._max_k = max((r.top_k for r in kinds), default=0)
        self._any_p = any(r.top_p < 1 for r in kinds)
        self._any_min_p = any(r.min_p > 0 for r in kinds)
        self._any_typical_p = any(r.typical_p < 1 for r in kinds)
        self._by_width: dict[int, tuple[Tensor, ...]] = {}  # what the kernels read, by the width of a window

    def with_constraint(self, constraint: Constraint | None) -> TokenSampler:
        """A sampler of the same parameters for other sequences of the same rows, which may leave it."""
        other = copy(self)
        other.constraint = constraint
        return other

    def after_join(self, other: TokenSampler) -> None:
        for name in _ANY:
            setattr(self, name, getattr(self, name) or getattr(other, name))
        self._all_greedy = self._all_greedy and other._all_greedy
        self._max_k = max(self._max_k, other._max_k)

    def after_move(self) -> None:
        self._by_width = {}

    def sample(self, p: Probs, rng: WindowRNG, stream: int = RESAMPLE) -> Tensor:
        """Samples int64 [B, W] from probabilities [B, W, V]."""
        return self.ops.sample_draft(p, rng[stream]) if stream == DRAFT else self.ops.sample(p, rng[stream])

    def verify(self, p: Probs, draft: Draft, rule: Accept, rng: WindowRNG) -> Verdict:
        """Tests a draft under probabilities [B, m + 1, V]; see `mmspec.sampling.rejection.verify`."""
        return self.ops.verify(p, draft, rule, rng[ACCEPT], rng[RESAMPLE])

    @property
    def reads_positions(self) -> bool:
        """Whether the distributions depend on positions."""
        return self._guidance_ends or self.constraint is not None

    def sample_ahead(self, p: Probs, rng: WindowRNG) -> PendingTokens | None:
        """As `sample`, without waiting for a device; see `mmspec.decoding.ahead.SamplesAhead`."""
        return self.ops.sample_ahead(p, rng[RESAMPLE])

    def verify_ahead(self, p: Probs, draft: Draft, rule: Accept, rng: WindowRNG) -> PendingVerdict | None:
        """As `verify`, without waiting for a device; see `mmspec.decoding.ahead.SamplesAhead`."""
        return self.ops.verify_ahead(p, draft, rule, rng[ACCEPT], rng[RESAMPLE])

    def __call__(self, logits: Logits, positions: Numbers) -> Probs:
        """As `probs`; with the Triton kernels they are not written out, see `mmspec.sampling.lazy_probs`."""
        return self.ops.probs(self, logits, positions)

    def probs(self, logits: Logits, positions: NDArray[np.int64]) -> Tensor:
        """Probabilities float32 [B, W, V]; a greedy row has all its mass on one token.

        Args:
            logits: The logits of the window.
            positions: Host int64 [B, W], the position of each slot.
        """
        z = logits.cond.float()
        if logits.uncond is not None:
            scale = self.guidance
            if self._guidance_ends:
                position = torch.from_numpy(positions).to(z.device)[..., None]
                scale = torch.where(position < self.guidance_end, scale, 1.0)
            # Where the model itself forbids a token both logits are -inf, and their difference would be NaN.
            mixed = torch.lerp(logits.uncond.float(), z, scale).masked_fill_(z.isneginf(), -torch.inf)
            # Without guidance, a token that only the unconditional logits forbid is allowed; with it, that is NaN.
            z = torch.where(scale == 1, z, mixed) if self._any_unguided else mixed
        if self.constraint is not None:
            z = z.masked_fill(self.constraint.mask(positions), -torch.inf)
        if self._all_greedy:
            return _one_hot(z)
        greedy = _one_hot(z) if self._any_greedy else None
        # Tensors of the vocabulary's size cost more than the arithmetic: where no gradients are needed, those that
        # were made here are overwritten.
        inplace = not z.requires_grad
        if self._any_temperature:
            z = z.div_(self.temperature) if inplace and z is not logits.cond else z / self.temperature
        if self._max_k:
            z = keep_top_k(z, self.top_k, self._max_k, inplace and z is not logits.cond)
        p = z.softmax(-1)
        if self._any_p:
            p = keep_top_p(p, self.top_p, inplace)
        if self._any_min_p:
            p = keep_min_p(p, self.min_p)
        if self._any_typical_p:
            p = keep_typical(p, self.typical_p)
        return p if greedy is None else torch.where(self.greedy, greedy, p)

    def read_by_kernels(self, positions: Numbers) -> tuple[Any, ...] | None:
        """The fields of `mmspec.kernels.fused_sampler.Settings`; None for min-p and typical-p, which no kernel has."""
        if self._any_min_p or self._any_typical_p:
            return None
        scale, temperature, top_k, top_p = self._read_by_kernels(positions.host.shape[1])
        if self._guidance_ends:
            scale = torch.where(positions.on(scale.device) < self.guidance_end[:, 0], scale, 1.0)
        return (
            scale,
            temperature,
            top_k if self._max_k else None,
            top_p if self._any_p else None,
            None if self.constraint is None else self.constraint.device_kinds(positions),
            None if self.constraint is None else self.constraint.allowed,
        )

    def of_any_slot(self) -> tuple[tuple[Tensor, ...], tuple[bool, bool]] | None:
        """What the kernels read of one slot of each row, if it is the same at all positions; else None.

        Returns:
            Guidance scales float32 [B, 1], temperatures float32 [B], which are 0 if greedy, top-k int32 [B] and top-p
            float32 [B], the same object until rows leave or join; and whether any row has a top-k, and a top-p.
        """
        if self._guidance_ends or self.constraint is not None or self._any_min_p or self._any_typical_p:
            return None
        return self._read_by_kernels(1), (bool(self._max_k), self._any_p)

    def _read_by_kernels(self, width: int) -> tuple[Tensor, ...]:
        if width not in self._by_width:
            self._by_width[width] = (
                self.guidance[:, 0].expand(-1, width).contiguous(),
                self.temperature.masked_fill(self.greedy, 0.0).flatten(),
                self.top_k.flatten().int(),
                self.top_p.flatten(),
            )
        return self._by_width[width]


class ColumnSampler:
    """Turns the logits of columns into probabilities, each row with its own sampling parameters.

    Args:
        params: The sampling parameters of each row.
        forced: Forced cells, or None.
        device: The device of the logits.

    Raises:
        ArgumentError: If the forced cells are for another number of rows.
    """

    ROWS = ("_cells", "forced")

    def __init__(self, params: Sequence[SamplingParams], forced: ForcedCells | None, device: torch.device) -> None:
        if forced is not None and forced.batch_size not in (None, len(params)):
            raise ArgumentError(f"forced cells are for {forced.batch_size} rows, and there are {len(params)}")
        self._cells = TokenSampler(params, None, device)
        self.ops = self._cells.ops
        self.forced = forced

    def __call__(self, logits: Logits, positions: Numbers) -> Probs:
        """Probabilities float32 [B, W, K, V] from logits of this shape; a forced cell has all its mass on one entry."""
        width, codebooks = logits.cond.shape[1:3]
        flat = Logits(logits.cond.flatten(1, 2), None if logits.uncond is None else logits.uncond.flatten(1, 2))
        p = self._cells(flat, self._of_cells(positions, codebooks)).unflatten(1, (width, codebooks))
        return p if self.forced is None else self.ops.force(p, self.forced, positions)

    def _of_cells(self, positions: Numbers, codebooks: int) -> Numbers:
        """The position of each cell, with its copy on a device only where that is needed."""
        host, there = positions.host.repeat(codebooks, axis=1), positions.there
        if there is None or not self._cells.reads_positions:
            return Numbers(host)
        return Numbers(host, there.repeat_interleave(codebooks, 1))

    def sample(self, p: Probs, rng: WindowRNG, stream: int = RESAMPLE) -> Tensor:
        """Samples columns int64 [B, W, K] from probabilities [B, W, K, V]."""
        u = rng.uniforms(stream, 0, p.shape[2])
        tokens = self.ops.sample_draft(p, u) if stream == DRAFT else self.ops.sample(p, u)
        return self.ops.put(p, tokens, self.forced, rng.positions)

    def sample_ahead(self, p: Probs, rng: WindowRNG) -> PendingTokens | None:
        """As `sample`, without waiting for a device; see `mmspec.decoding.ahead.SamplesAhead`."""
        return self.ops.sample_ahead(p, rng.uniforms(RESAMPLE, 0, p.shape[2]))

    def verify_ahead(self, p: Probs, draft: Draft, rule: Accept, rng: WindowRNG) -> PendingVerdict | None:
        """As `verify`, without waiting for a device; see `mmspec.decoding.ahead.SamplesAhead`."""
        return self.ops.verify_columns_ahead(p, draft, rule, rng)

    def verify(self, p: Probs, draft: Draft, rule: Accept, rng: WindowRNG) -> Verdict:
        """Tests the drafts from left to right; resamples the first rejected one, or samples the bonus column.

        Args:
            p: float32 [B, m + 1, K, V], the target distribution at every slot.
            draft: m columns [B, m, K] and their q [B, m, K, V]; m may be 0.
            rule: The acceptance rule of one cell; columns take the product of the cells' ratios, see
                `mmspec.sampling.multi_codebook.acceptance_probs`.
            rng: The random numbers of the window.
        """
        if p.shape[1] == 1:
            return Verdict(self.sample(p, rng), Numbers(np.zeros(len(p), dtype=np.int64)), p, draft)
        return self.ops.verify_columns(p, draft, rule, rng, self.forced)


def keep_top_k(z: Tensor, k: Tensor, largest: int, inplace: bool = False) -> Tensor:
    """Sets logits below the row's k-th largest one to -inf.

    Args:
        z: float32 [B, W, V].
        k: int64 [B, 1, 1]; 0 keeps all.
        largest: The maximum of `k`.
        inplace: Whether the result may overwrite `z`.
    """
    vocab = z.shape[-1]
    ranks = k.clamp(1, min(largest, vocab)).expand(*z.shape[:-1], 1)
    if z.device.type == "cpu":
        # NumPy's selection takes half the time of a top-k, which also sorts.
        kth = np.unique(vocab - ranks.numpy())
        floor = torch.from_numpy(np.partition(z.detach().numpy(), kth, axis=-1)).gather(-1, vocab - ranks)
    else:
        floor = z.topk(min(largest, vocab), dim=-1).values.gather(-1, ranks - 1)
    floor = floor.masked_fill(k == 0, -torch.inf)
    below = z < floor
    return z.masked_fill_(below, -torch.inf) if inplace else z.masked_fill(below, -torch.inf)


def _one_hot(z: Tensor) -> Tensor:
    best = z.argmax(-1, keepdim=True)
    # A row of NaN, or without an allowed token, becomes NaN, so that greedy decoding reports a broken target as well.
    mass = torch.where(z.gather(-1, best).isfinite(), 1.0, torch.nan)
    return torch.zeros_like(z).scatter_(-1, best, mass)
