"""Lazy probabilities: target distributions that are not written out, where the Triton kernels run.

The decoding loop, the drafters and the rules are written for probability tensors [B, W, V]. On a GPU these tensors are
the cost of verification: each is written once and read several times, while the kernels read the logits once. Here a
distribution is therefore a tensor without memory. The few functions that sampling and verification consist of launch
kernels for it, through torch's override protocol (`__torch_function__`); every other function gets the probabilities
themselves, computed when it is called.

`mmspec.sampling.sampler.TokenSampler` makes these tensors, and imports this module only then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map_only

from mmspec.errors import ModelError
from mmspec.kernels import coupling as coupling_kernels
from mmspec.kernels import softmax_stats
from mmspec.kernels.forced_cells import force_cells, forced_cells_reference
from mmspec.kernels.fused_sampler import Settings, fused_sample
from mmspec.kernels.residual import resample
from mmspec.kernels.softmax_stats import LINE, SoftmaxStats, at, point_mass_stats, stats_of_probs
from mmspec.sampling.constraints import ForcedCells
from mmspec.sampling.coupling import (
    couple_by_noise,
    couple_columns_by_noise,
    couple_fresh,
    couple_maximally,
    first_reused,
)
from mmspec.sampling.logits import Logits
from mmspec.sampling.mirrored import copied, on_device
from mmspec.sampling.rejection import (
    INVALID,
    Draft,
    Verdict,
    log_probs,
    one_hot,
    point_mass,
    ratio,
    residual,
    sample,
    sample_draft,
)
from mmspec.sampling.rng import CounterRNG


class LazyProbs(Tensor):
    """Distributions float32 [B, W, V], or [B, W, K, V] of cells, represented by logits and sampling parameters.

    A kernel reads the logits when the first token is sampled, or the first probability needed. From then on the
    distributions are represented by their `SoftmaxStats`.
    """

    _logits: Logits | None  # [B, W * K, V]
    _settings: Settings | None
    _stats: SoftmaxStats | None
    _u: Tensor | None
    _samples: Tensor | None  # the tokens at `_u`
    _dense: Tensor | None
    _valid: bool  # whether all are known to be distributions, so that no check needs to wait for the device
    _path: tuple[LazyProbs, Tensor] | None  # the distributions that these are some of, and which ones, see `along`
    forced: tuple[ForcedCells, NDArray[np.int64]] | None  # of columns, with the positions; see `force`

    @staticmethod
    def of(logits: Logits, settings: Settings) -> LazyProbs:
        """The distributions of a window whose logits no kernel has read yet."""
        probs = _empty(logits.cond.shape, logits.cond.device)
        probs._logits, probs._settings = logits, settings
        return probs

    @staticmethod
    def known(stats: SoftmaxStats) -> LazyProbs:
        """The distributions of slots that a kernel has read."""
        probs = _empty(stats.shape, stats.device)
        probs._stats = stats
        return probs

    @staticmethod
    def along(p: LazyProbs, entries: Tensor) -> LazyProbs:
        """The distributions of some slots of each row, int64 [B, n]; nothing is launched before they are needed."""
        probs = _empty((*entries.shape, p.shape[-1]), p.device)
        probs._path, probs._valid = (p, entries), p._valid
        return probs

    def force(self, cells: ForcedCells, positions: NDArray[np.int64]) -> LazyProbs:
        """These distributions of columns, whose logits no kernel has read yet, with point masses in forced cells.

        Samples of forced cells are their ids, also those outside the vocabulary.

        Args:
            cells: The forced cells.
            positions: Host int64 [B, W].
        """
        assert self._stats is None and self._path is None
        self.forced = cells, positions
        return self

    def forced_table(self) -> tuple[Tensor, Tensor] | None:
        """The forced cells and the positions, on the device; None if no cells are forced."""
        if self.forced is None:
            return None
        cells, positions = self.forced
        return cells.table(self.device), on_device(positions, self.device)

    def fused_sample(self, u: Tensor, drafts: Tensor | None = None) -> Tensor | None:
        """Reads the logits unless a kernel has done so, and samples tokens at `u` in the same launch.

        Returns:
            The probabilities of the drafts, or None if the logits had been read before.
        """
        if self._stats is not None or self._path is not None:
            return None
        assert self._logits is not None and self._settings is not None
        fused = fused_sample(self._logits.cond, self._logits.uncond, self._settings, u.flatten(1), drafts)
        self._stats, self._u, self._samples = fused.stats.view(*u.shape), u, fused.tokens.view(u.shape)
        if (known := self.forced_table()) is not None:
            force_cells(*known, self._stats.floats, self._stats.ints, self._samples, self.shape[-1])
        self._logits = self._settings = None
        return fused.chance

    @property
    def stats(self) -> SoftmaxStats:
        if self._stats is None and self._path is not None:
            p, entries = self._path
            row = torch.arange(len(entries), device=entries.device)[:, None]
            self._stats = p.stats[row, entries]
        if self._stats is None:
            with torch._C.DisableTorchFunctionSubclass():
                u = _zeros(tuple(self.shape[:-1]), self.device)
            self.fused_sample(u)
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

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        lazy = FUNCTIONS.get(func)
        if lazy is not None:
            return lazy(*args, **(kwargs or {}))
        if func in _SHAPES:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        in_place = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
        if (in_place and isinstance(args[0], LazyProbs)) or isinstance((kwargs or {}).get("out"), LazyProbs):
            raise TypeError(f"{name}: the kernels would not see the change of these distributions; change a clone")
        return cls.__torch_dispatch__(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """Applies any other function to the probabilities themselves."""
        plain = tree_map_only(LazyProbs, LazyProbs.dense, (args, dict(kwargs or {})))
        return func(*plain[0], **plain[1])


class _LazyResidual:
    """(p - q)+ of a lazy distribution p and a distribution q."""

    def __init__(self, p: LazyProbs, q: SoftmaxStats) -> None:
        self.p, self.q = p, q

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        return FUNCTIONS[func](*args, **(kwargs or {}))


def _empty(shape: Sequence[int], device: torch.device) -> LazyProbs:
    probs = Tensor._make_wrapper_subclass(LazyProbs, tuple(shape), dtype=torch.float32, device=device)
    probs._logits = probs._settings = probs._stats = probs._u = probs._samples = probs._dense = probs._path = None
    probs._valid, probs.forced = False, None
    return probs


@lru_cache(maxsize=64)
def _zeros(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Random numbers of samples that are not used."""
    return torch.zeros(shape, device=device)


def dense_of(probs: Tensor) -> Tensor:
    """The probabilities themselves, of lazy or plain distributions."""
    return probs.dense() if isinstance(probs, LazyProbs) else probs


def stats_of(probs: Tensor) -> SoftmaxStats:
    """The statistics of lazy or plain distributions [B, m, ..., V]."""
    if isinstance(probs, LazyProbs):
        return probs.stats
    return stats_of_probs(probs.flatten(1, -2)).view(*probs.shape[:-1])


def _sample(weights: LazyProbs | _LazyResidual, u: Tensor, fallback: Tensor | None = None) -> Tensor:
    """`mmspec.sampling.rejection.sample`."""
    if isinstance(weights, LazyProbs):
        return checked(weights, weights.sample(u))
    every = torch.ones_like(u, dtype=torch.bool)
    return checked(weights.p, resample(weights.p.stats, weights.q, every, u))


def _sample_draft(q: LazyProbs, u: Tensor) -> Tensor:
    """`mmspec.sampling.rejection.sample_draft`. Models read the token, so that it is always one of the vocabulary."""
    return q.sample(u).clamp(min=0)


def _cat(probs: Sequence[Tensor], dim: int = 0) -> Tensor:
    """`torch.cat` of the distributions of windows of one token each, as a chain of drafts makes them."""
    every = [one.stats for one in probs if isinstance(one, LazyProbs)]
    first, count = every[0], len(probs)
    alike = len(every) == count and all(
        one.cond.shape == first.cond.shape and one.cond.dtype == first.cond.dtype and p.shape[1] == 1
        and one.ints.shape[:-1].numel() == first.cond.shape[:2].numel()
        and (one.uncond is None) == (first.uncond is None) and one.allowed is first.allowed
        for one, p in zip(every, probs, strict=True)
    )  # fmt: skip
    if not alike or dim != 1:
        return torch.cat([dense_of(one) for one in probs], dim)
    uncond = [one.uncond for one in every if one.uncond is not None]
    ints = torch.cat([one.ints for one in every], dim=1)
    # The slots of each, which are the cells of one token, follow those of the ones before it in their row.
    lines, slots = ints[..., LINE], first.cond.shape[1]
    numbers = _numbers(count, slots, lines.device).view(count, *(1,) * (lines.ndim - 2))
    if slots == 1:
        torch.add(numbers, lines, alpha=count, out=lines)
    else:
        torch.add(lines + numbers, lines // slots, alpha=(count - 1) * slots, out=lines)
    return LazyProbs.known(replace(
        first, cond=torch.cat([one.cond for one in every], dim=1), uncond=torch.cat(uncond, dim=1) if uncond else None,
        floats=torch.cat([one.floats for one in every], dim=1), ints=ints,
    ))  # fmt: skip


def join_logits(slots: Sequence[Tensor], floats: Tensor, ints: Tensor) -> LazyProbs:
    """The distributions of a window, from those of its slots, [B, 1, V] each, and its statistics.

    Args:
        slots: The distributions, of which the logits are taken.
        floats: float32 [B, m, 5], see `mmspec.kernels.softmax_stats.SoftmaxStats`.
        ints: int32 [B, m, 5]; the logits of slot s of row b are line b * m + s.
    """
    every = [stats_of(one) for one in slots]
    uncond = [one.uncond for one in every if one.uncond is not None]
    return LazyProbs.known(SoftmaxStats(
        torch.cat([one.cond for one in every], dim=1), torch.cat(uncond, dim=1) if uncond else None, every[0].allowed,
        floats, ints,
    ))  # fmt: skip


@lru_cache(maxsize=16)
def _numbers(count: int, step: int, device: torch.device) -> Tensor:
    return torch.arange(0, count * step, step, dtype=torch.int32, device=device)


def copied_draft(draft: Draft, logits: Logits) -> Draft | None:
    """A draft in memory of its own; None if it was not made by a kernel, or from logits of another shape.

    Args:
        draft: The draft.
        logits: Where the logits of its distributions are put.
    """
    if draft.window is None or not isinstance(draft.q, LazyProbs):
        return None
    stats = draft.q.stats
    for there, given in zip(logits, (stats.cond, stats.uncond), strict=True):
        if (there is None) != (given is None):
            return None
        if there is not None and given is not None:
            if there.shape != given.shape or there.dtype != given.dtype:
                return None
            there.copy_(given)
    window, (cond, uncond) = draft.window.clone(), logits
    own = replace(stats, cond=cond, uncond=uncond, floats=stats.floats.clone(), ints=stats.ints.clone())
    return Draft(window[:, 1:], LazyProbs.known(own), window)


def overwrite_draft(draft: Draft, new: Draft) -> None:
    """Writes the tokens of a new draft, and their distributions except for the logits, to that of `copied_draft`."""
    assert draft.window is not None and new.window is not None
    assert isinstance(draft.q, LazyProbs) and isinstance(new.q, LazyProbs)
    draft.window.copy_(new.window)
    draft.q.stats.floats.copy_(new.q.stats.floats)
    draft.q.stats.ints.copy_(new.q.stats.ints)


def check_tokens(p: Tensor, tokens: Tensor) -> Tensor:
    """Tokens that were sampled from `p` before it was known whether its distributions are valid.

    Raises:
        ModelError: If there are none because a distribution is invalid.
    """
    return checked(p, tokens) if isinstance(p, LazyProbs) else tokens


def unchecked(p: Tensor) -> Tensor:
    """Distributions of drafts, for whose samples nothing waits: the verification of the drafts finds invalid ones."""
    if isinstance(p, LazyProbs):
        p._valid = True
    return p


def _couple_fresh(p: LazyProbs, verdict: Verdict, resample_u: Tensor) -> Tensor:
    """`mmspec.sampling.coupling.couple_fresh`, with the samples that came with the verification."""
    return checked(p, p.sample(resample_u))


def _couple_maximally(p: LazyProbs, verdict: Verdict, accept_u: Tensor, resample_u: Tensor) -> Tensor:
    """`mmspec.sampling.coupling.couple_maximally`, in one launch."""
    draft = verdict.draft
    if p.shape[1] == 1 or first_reused(verdict) == p.shape[1] - 1:
        return _couple_fresh(p, verdict, resample_u)
    accepted, q = on_device(verdict.accepted, p.device), stats_of(draft.q)
    numbers = verdict.tokens, p.sample(resample_u), accepted, accept_u, resample_u
    return checked(p, coupling_kernels.couple_maximally(p.stats, q, rows_of(draft.tokens), *numbers))


def _couple_by_noise(p: LazyProbs, rng: CounterRNG, positions: NDArray[np.int64]) -> Tensor:
    """`mmspec.sampling.coupling.couple_by_noise`, in one launch."""
    seeds = rng.device_seeds()
    return checked(p, coupling_kernels.couple_by_noise(p.stats, seeds, on_device(positions, p.device)))


def _couple_columns_by_noise(p: LazyProbs, rng: CounterRNG, positions: NDArray[np.int64]) -> Tensor:
    """`mmspec.sampling.coupling.couple_columns_by_noise`, in one launch."""
    (batch, width, cells), known = p.shape[:3], p.forced_table()
    stats, table = p.stats.view(batch, width * cells), None if known is None else known[0]
    there = on_device(positions, p.device)
    tokens = coupling_kernels.couple_by_noise(stats, rng.device_seeds(), there, cells, table)
    return checked(p, tokens.view(batch, width, cells))


def rows_of(tokens: Tensor) -> Tensor:
    """Tokens [B, m] with those of a row next to each other, as kernels read them."""
    return tokens if tokens.stride(1) == 1 else tokens.contiguous()


def checked(p: LazyProbs, tokens: Tensor) -> Tensor:
    """Tokens of lazy distributions.

    Raises:
        ModelError: If there are none because a distribution is invalid.
    """
    if not p._valid and bool((tokens < 0).any()):
        raise ModelError(INVALID)
    return tokens


def _ratio(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
    """`mmspec.sampling.rejection.ratio`."""
    p_x, q_x = (
        at(*probs.stats.source(), x) if isinstance(probs, LazyProbs) else probs.gather(-1, x[..., None])[..., 0]
        for probs in (p, q)
    )
    return p_x / q_x


def _log_probs(p: LazyProbs, more: int = 0) -> Tensor:
    """`mmspec.sampling.rejection.log_probs`, in one launch after that which reads the logits."""
    return softmax_stats.log_probs(*p.stats.source(), more)


def _residual(p: Tensor, q: Tensor) -> Any:
    """`mmspec.sampling.rejection.residual`."""
    return _LazyResidual(p, stats_of(q)) if isinstance(p, LazyProbs) else residual(p, dense_of(q))


def _point_mass(q: LazyProbs, tokens: Tensor, first: int, new: NDArray[np.bool_] | Tensor) -> LazyProbs:
    """`mmspec.sampling.rejection.point_mass`."""
    ones = point_mass_stats(q.stats, tokens)
    if isinstance(new, Tensor):
        where = F.pad(new, (*(0, 0) * (new.ndim - 2), first, 0))[..., None] if first else new[..., None]
    else:
        padded = np.pad(new, ((0, 0), (first, 0), (0, 0))[: new.ndim])
        where = copied(torch.from_numpy(padded), tokens.device)[..., None]
    floats, ints = torch.where(where, ones.floats, q.stats.floats), torch.where(where, ones.ints, q.stats.ints)
    return LazyProbs.known(replace(q.stats, floats=floats, ints=ints))


def _one_hot(like: LazyProbs, tokens: Tensor) -> LazyProbs:
    """`mmspec.sampling.rejection.one_hot`."""
    return LazyProbs.known(point_mass_stats(like.stats, tokens))


def _index(probs: LazyProbs, index: Any) -> Any:
    """Some of the slots, by an index of the axes B and W."""
    axes = index if isinstance(index, tuple) else (index,)
    if len(axes) > 2 or any(isinstance(axis, int) or axis is None or axis is Ellipsis for axis in axes):
        return probs.dense()[index]
    slots = LazyProbs.known(probs.stats[index])
    slots._valid = probs._valid
    return slots


def _unflatten(probs: LazyProbs, dim: int, sizes: Sequence[int]) -> Tensor:
    """Distributions [B, W, K, V] from distributions [B, W * K, V]."""
    if dim != 1 or probs.ndim != 3:
        return probs.dense().unflatten(dim, sizes)
    if probs._stats is None and probs._path is None:  # no kernel has read the logits yet
        cells = _empty((probs.shape[0], *sizes, probs.shape[-1]), probs.device)
        cells._logits, cells._settings = probs._logits, probs._settings
    else:
        cells = LazyProbs.known(probs.stats.view(len(probs), *sizes))
    cells._valid = probs._valid
    return cells


_SHAPES: set[Any] = {
    Tensor.shape.__get__,  # type: ignore[attr-defined]
    Tensor.device.__get__,
    Tensor.dtype.__get__,  # type: ignore[attr-defined]
    Tensor.ndim.__get__,  # type: ignore[attr-defined]
    Tensor.__len__,
    Tensor.size,
}
# What is implemented for lazy probabilities; `mmspec.sampling.lazy_verification` and `lazy_trees` add what verifies.
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    sample: _sample,
    sample_draft: _sample_draft,
    torch.cat: _cat,
    couple_fresh: _couple_fresh,
    couple_maximally: _couple_maximally,
    couple_by_noise: _couple_by_noise,
    couple_columns_by_noise: _couple_columns_by_noise,
    ratio: _ratio,
    residual: _residual,
    log_probs: _log_probs,
    point_mass: _point_mass,
    one_hot: _one_hot,
    Tensor.__getitem__: _index,
    Tensor.unflatten: _unflatten,
}
