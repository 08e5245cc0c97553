"""Lazy probabilities: target distributions that are not written out, where the Triton kernels run.

On a GPU probability tensors [B, W, V] are the cost of verification: each is written once and read several times, while
the kernels read the logits once. Here a distribution is therefore its logits and what a kernel has found of them.
`mmspec.sampling.kernel_ops.KernelOps` works on it; other code asks `mmspec.sampling.probs.dense` for a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from mmspec.errors import ModelError
from mmspec.kernels.forced_cells import force_cells, forced_cells_reference
from mmspec.kernels.fused_sampler import Settings, fused_sample
from mmspec.kernels.residual import resample
from mmspec.kernels.softmax_stats import LINE, SoftmaxStats, point_mass_stats, stats_of_probs
from mmspec.sampling.constraints import ForcedCells
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.probs import NotWritten, Probs
from mmspec.sampling.rejection import INVALID


class LazyProbs(NotWritten):
    """Distributions float32 [B, W, V], or [B, W, K, V] of cells, represented by logits and sampling parameters.

    A kernel reads the logits when the first token is sampled, or the first probability needed. From then on the
    distributions are represented by their `SoftmaxStats`.

    Attributes:
        shape: That of the probabilities.
        device: Of the logits.
        is_valid: Whether all are known to be distributions, so that no check needs to wait for the device.
        forced: Forced cells of columns, and the positions; see `force`.
    """

    def __init__(self, shape: Sequence[int], device: torch.device, is_valid: bool = False) -> None:
        self.shape, self.device, self.is_valid = torch.Size(shape), device, is_valid
        self.forced: tuple[ForcedCells, Numbers] | None = None
        self._unread: tuple[Logits, Settings] | None = None  # logits [B, W * K, V]
        self._stats: SoftmaxStats | None = None
        self._u: Tensor | None = None
        self._samples: Tensor | None = None  # the tokens at `_u`
        self._dense: Tensor | None = None
        self._path: tuple[LazyProbs, Tensor] | None = None  # what these are some of, and which ones, see `along`

    @staticmethod
    def of(logits: Logits, settings: Settings) -> LazyProbs:
        """The distributions of a window whose logits no kernel has read yet."""
        probs = LazyProbs(logits.cond.shape, logits.cond.device)
        probs._unread = logits, settings
        return probs

    @staticmethod
    def known(stats: SoftmaxStats, is_valid: bool = False) -> LazyProbs:
        """The distributions of slots that a kernel has read."""
        probs = LazyProbs(stats.shape, stats.device, is_valid)
        probs._stats = stats
        return probs

    @staticmethod
    def along(p: LazyProbs, entries: Tensor) -> LazyProbs:
        """The distributions of some slots of each row, int64 [B, n]; nothing is launched before they are needed."""
        probs = LazyProbs((*entries.shape, p.shape[-1]), p.device, p.is_valid)
        probs._path = p, entries
        return probs

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> LazyProbs:
        """Some of the slots, by an index of the axes B and W that keeps both."""
        axes = index if isinstance(index, tuple) else (index,)
        assert len(axes) <= 2 and not any(isinstance(axis, int) or axis is None or axis is Ellipsis for axis in axes)
        return LazyProbs.known(self.stats[index], self.is_valid)

    def unflatten(self, dim: int, sizes: Sequence[int]) -> LazyProbs:
        """Distributions [B, W, K, V] from distributions [B, W * K, V]; `dim` is 1."""
        assert dim == 1 and len(self.shape) == 3
        if self._unread is None:
            return LazyProbs.known(self.stats.view(len(self), *sizes), self.is_valid)
        cells = LazyProbs((len(self), *sizes, self.shape[-1]), self.device, self.is_valid)
        cells._unread = self._unread
        return cells

    def force(self, cells: ForcedCells, positions: Numbers) -> LazyProbs:
        """These distributions of columns, whose logits no kernel has read yet, with point masses in forced cells.

        Samples of forced cells are their ids, also those outside the vocabulary.

        Args:
            cells: The forced cells.
            positions: [B, W].
        """
        assert self._unread is not None
        self.forced = cells, positions
        return self

    def forced_table(self) -> tuple[Tensor, Tensor] | None:
        """The forced cells and the positions, on the device; None if no cells are forced."""
        if self.forced is None:
            return None
        cells, positions = self.forced
        return cells.table(self.device), positions.on(self.device)

    def fused_sample(self, u: Tensor, drafts: Tensor | None = None) -> Tensor | None:
        """Reads the logits unless a kernel has done so, and samples tokens at `u` in the same launch.

        Returns:
            The probabilities of the drafts, or None if the logits had been read before.
        """
        if self._unread is None:
            return None
        logits, settings = self._unread
        fused = fused_sample(logits.cond, logits.uncond, settings, u.flatten(1), drafts)
        self._stats, self._u, self._samples = fused.stats.view(*u.shape), u, fused.tokens.view(u.shape)
        if (known := self.forced_table()) is not None:
            force_cells(*known, self._stats.floats, self._stats.ints, self._samples, self.shape[-1])
        self._unread = None
        return fused.chance

    @property
    def stats(self) -> SoftmaxStats:
        if self._stats is None and self._path is not None:
            p, entries = self._path
            row = torch.arange(len(entries), device=entries.device)[:, None]
            self._stats = p.stats[row, entries]
        if self._stats is None:
            self.fused_sample(_zeros(tuple(self.shape[:-1]), self.device))
        assert self._stats is not None
        return self._stats

    def sample(self, u: Tensor) -> Tensor:
        """A token of each slot at `u` [B, W, ...], int64; -1 where the distribution is invalid."""
        self.fused_sample(u)
        if self._samples is not None and self._u is u:
            return self._samples
        # The residual of p and a point mass outside the vocabulary is p.
        nothing = point_mass_stats(self.stats, torch.full(u.shape, self.stats.shape[-1], device=u.device))
        tokens = resample(self.stats, nothing, torch.ones_like(u, dtype=torch.bool), u)
        if (known := self.forced_table()) is None:
            return tokens
        must = forced_cells_reference(*known, u.shape[-1])
        return torch.where(must >= 0, must, tokens)

    def dense(self) -> Tensor:
        """The probabilities themselves."""
        if self._dense is None:
            self._dense = self.stats.dense()
        return self._dense


@lru_cache(maxsize=64)
def _zeros(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Random numbers of samples that are not used."""
    return torch.zeros(shape, device=device)


def lazy(probs: Probs) -> LazyProbs:
    """Lazy distributions, of themselves or of probabilities [B, m, ..., V]."""
    if isinstance(probs, Tensor):
        return LazyProbs.known(stats_of_probs(probs.flatten(1, -2)).view(*probs.shape[:-1]))
    assert isinstance(probs, LazyProbs)
    return probs


def join_windows(probs: Sequence[Probs]) -> LazyProbs | None:
    """The distributions of a window, from those of one token each, as a chain of drafts makes them.

    Returns:
        None if they are not of one kind.
    """
    every = [one.stats for one in probs if isinstance(one, LazyProbs)]
    if len(every) < len(probs):
        return None
    first, count = every[0], len(probs)
    alike = all(
        one.cond.shape == first.cond.shape and one.cond.dtype == first.cond.dtype and p.shape[1] == 1
        and one.ints.shape[:-1].numel() == first.cond.shape[:2].numel()
        and (one.uncond is None) == (first.uncond is None) and one.allowed is first.allowed
        for one, p in zip(every, probs, strict=True)
    )  # fmt: skip
    if not alike:
        return None
    ints = torch.cat([one.ints for one in every], dim=1)
    # The slots of each, which are the cells of one token, follow those of the ones before it in their row.
    lines, slots = ints[..., LINE], first.cond.shape[1]
    numbers = _numbers(count, slots, lines.device).view(count, *(1,) * (lines.ndim - 2))
    if slots == 1:
        torch.add(numbers, lines, alpha=count, out=lines)
    else:
        torch.add(lines + numbers, lines // slots, alpha=(count - 1) * slots, out=lines)
    return join_logits(probs, torch.cat([one.floats for one in every], dim=1), ints)


def join_logits(slots: Sequence[Probs], floats: Tensor, ints: Tensor) -> LazyProbs:
    """The distributions of a window, from those of its slots, [B, 1, V] each, and its statistics.

    Args:
        slots: The distributions, of which the logits are taken.
        floats: float32 [B, m, 5], see `mmspec.kernels.softmax_stats.SoftmaxStats`.
        ints: int32 [B, m, 5]; the logits of slot s of row b are line b * m + s.
    """
    every = [lazy(one).stats for one in slots]
    uncond = [one.uncond for one in every if one.uncond is not None]
    return LazyProbs.known(SoftmaxStats(
        torch.cat([one.cond for one in every], dim=1), torch.cat(uncond, dim=1) if uncond else None, every[0].allowed,
        floats, ints,
    ))  # fmt: skip


@lru_cache(maxsize=16)
def _numbers(count: int, step: int, device: torch.device) -> Tensor:
    return torch.arange(0, count * step, step, dtype=torch.int32, device=device)


def checked(p: LazyProbs, tokens: Tensor) -> Tensor:
    """Tokens of lazy distributions.

    Raises:
        ModelError: If there are none because a distribution is invalid.
    """
    if not p.is_valid and bool((tokens < 0).any()):
        raise ModelError(INVALID)
    return tokens
