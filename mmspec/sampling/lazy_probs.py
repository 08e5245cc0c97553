"""Probabilities that are not written out: what `mmspec.sampling.sampler.TokenSampler` gives where the Triton kernels run.

The loop, the drafters and the rules are written for tensors [B, W, V]. On a device such tensors are what verification
costs: each is written once and read several times, while the kernels need the logits once. So here the distribution is a tensor
without memory. The few functions that make up drawing and testing know it and launch kernels; whatever else touches it
gets the probabilities themselves, computed then and there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map_only

from mmspec.errors import ModelError
from mmspec.kernels.accept import Test, committed
from mmspec.kernels.columns import columns
from mmspec.kernels.fused_sampler import Settings, fused_sample
from mmspec.kernels.residual import resample as redraw
from mmspec.kernels.softmax_stats import TOTAL, SoftmaxStats, at, point_mass_stats, written
from mmspec.kernels.tree import CHOSEN, INDEPENDENT, WITHOUT_REPLACEMENT, Branches, walk
from mmspec.rules.beta import Beta
from mmspec.rules.ensemble import Ensemble
from mmspec.rules.gsd import Grouped
from mmspec.rules.lantern import Additive, Multiplicative
from mmspec.rules.omega import Omega
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.logits import Logits
from mmspec.sampling.multi_codebook import MOST_DRAWS, behind, entries, verify_columns
from mmspec.sampling.rejection import Draft, Verdict, point_mass, ratio, residual, sample, verify
from mmspec.sampling.rng import WindowRNG
from mmspec.sampling.tree import Chosen, Independent, TreeDraft, WithoutReplacement
from mmspec.sampling.tree_rejection import TreeVerdict, verify_tree

_INVALID = "the model gave logits that are not numbers (NaN), or forbade every token of a position"


class LazyProbs(Tensor):
    """Distributions float32 [B, W, V], or [B, W, K, V] of cells, that are known by their logits and settings."""

    _logits: Logits | None  # [B, W * K, V]
    _settings: Settings | None
    _stats: SoftmaxStats | None
    _u: Tensor | None
    _drawn: Tensor | None
    _dense: Tensor | None
    _sound: bool  # whether all are known to be distributions, so that nobody need ask again and wait for the device

    @staticmethod
    def of(logits: Logits, settings: Settings) -> LazyProbs:
        """The distributions of a window that nobody has looked at yet."""
        probs = _shell(logits.cond.shape, logits.cond.device)
        probs._logits, probs._settings = logits, settings
        return probs

    @staticmethod
    def known(stats: SoftmaxStats) -> LazyProbs:
        """The distributions of slots a kernel has looked through."""
        probs = _shell(stats.shape, stats.device)
        probs._stats = stats
        return probs

    def fused_sample(self, u: Tensor, drafts: Tensor | None = None) -> Tensor | None:
        """Looks through the logits unless that was done, and draws at `u` meanwhile; the drafts' probabilities."""
        if self._stats is not None:
            return None
        assert self._logits is not None and self._settings is not None
        found = fused_sample(self._logits.cond, self._logits.uncond, self._settings, u.flatten(1), drafts)
        self._stats, self._u, self._drawn = found.stats.view(*u.shape), u, found.tokens.view(u.shape)
        self._logits = self._settings = None
        return found.chance

    @property
    def stats(self) -> SoftmaxStats:
        if self._stats is None:
            with torch._C.DisableTorchFunctionSubclass():
                u = torch.zeros(self.shape[:-1], device=self.device)
            self.fused_sample(u)
        assert self._stats is not None
        return self._stats

    def draw(self, u: Tensor) -> Tensor:
        """A token of each slot at `u` [B, W, ...], int64; -1 where it is not a distribution."""
        self.fused_sample(u)
        if self._drawn is not None and self._u is u:
            return self._drawn
        nothing = point_mass_stats(self.stats, torch.full(u.shape, self.stats.shape[-1], device=u.device))
        return redraw(self.stats, nothing, torch.ones_like(u, dtype=torch.bool), u)

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
        known = _FUNCTIONS.get(func)
        if known is not None:
            return known(*args, **(kwargs or {}))
        if func in _SHAPES:
            return super().__torch_function__(func, types, args, kwargs or {})
        return cls.__torch_dispatch__(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """Anything else is done to the probabilities themselves."""
        plain = tree_map_only(LazyProbs, LazyProbs.dense, (args, dict(kwargs or {})))
        return func(*plain[0], **plain[1])


class _Left:
    """(p - q)+ of a distribution that is not written out, and another."""

    def __init__(self, p: LazyProbs, q: SoftmaxStats) -> None:
        self.p, self.q = p, q

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        return _FUNCTIONS[func](*args, **(kwargs or {}))


def _shell(shape: Sequence[int], device: torch.device) -> LazyProbs:
    probs = Tensor._make_wrapper_subclass(LazyProbs, tuple(shape), dtype=torch.float32, device=device)
    probs._logits = probs._settings = probs._stats = probs._u = probs._drawn = probs._dense = None
    probs._sound = False
    return probs


def _plain(probs: Tensor) -> Tensor:
    """The probabilities themselves, whichever way they are known."""
    return probs.dense() if isinstance(probs, LazyProbs) else probs


def _stats_of(probs: Tensor) -> SoftmaxStats:
    """The slots of distributions [B, m, ..., V], whichever way they are known."""
    return probs.stats if isinstance(probs, LazyProbs) else written(probs.flatten(1, -2)).view(*probs.shape[:-1])


def _sample(weights: LazyProbs | _Left, u: Tensor, fallback: Tensor | None = None) -> Tensor:
    """`mmspec.sampling.rejection.sample`."""
    if isinstance(weights, _Left):
        sound = weights.p._sound
        tokens = redraw(weights.p.stats, weights.q, torch.ones_like(u, dtype=torch.bool), u)
    else:
        sound = weights._sound
        tokens = weights.draw(u)
    if not sound and bool((tokens < 0).any()):
        raise ModelError(_INVALID)
    return tokens


def _verify(p: LazyProbs, draft: Draft, rule: Accept, accept_u: Tensor, resample_u: Tensor) -> Verdict:
    """`mmspec.sampling.rejection.verify`, in three launches and one wait for the device."""
    m = accept_u.shape[1] - 1
    if m == 0:
        return Verdict(sample(p, resample_u), np.zeros(len(accept_u), dtype=np.int64), p, draft)
    test = _test(rule, p.device)
    if test is None:
        verdict = verify(p.dense(), draft, rule, accept_u, resample_u)
        verdict.p = p
        return verdict
    x, q = draft.tokens, _stats_of(draft.q)
    chance = p.fused_sample(resample_u, F.pad(x, (0, 1), value=-1))
    tested = p.stats[:, :m]
    chance = at(*tested.source(), x) if chance is None else chance[:, :m]
    first, excess = committed(tested, q, x, chance, accept_u[:, :m], test)
    slot = torch.arange(m + 1, device=x.device)
    todo = slot == first[:, None]
    resampled = redraw(tested, q, todo[:, :m], resample_u[:, :m])
    replaced = torch.cat([resampled, p.draw(resample_u)[:, m:]], dim=1)
    tokens = torch.where(todo, replaced, F.pad(x, (0, 1)))
    wrong = p.stats.floats[..., TOTAL].isnan().any(1)
    told = torch.stack([first, (todo & (tokens < 0)).any(1).long(), wrong.long()]).cpu().numpy()
    if told[1].any():
        raise ModelError(_INVALID)
    p._sound = not told[2].any()
    return Verdict(tokens, told[0], p, draft, None if rule is ratio else excess)


def _test(rule: Accept, device: torch.device) -> Test | None:
    """What kernels call a rule of the core; None for one that they do not know."""
    match rule:
        case Beta():
            return Test("beta", rule.beta)
        case Ensemble():
            return Test("ensemble", rule.draft)
        case Omega():
            return Test("omega", rule.delta, rule.decay)
        case Additive():
            return Test("lantern", rule.delta, near=rule.near.to(device))
        case Multiplicative():
            return Test("lantern++", rule.factor, near=rule.near.to(device))
        case Grouped():
            book = rule.codebook if rule.distance else None
            vectors, known = (None, None) if book is None else (book.vectors.to(device), book.known.to(device))
            return Test("gsd", rule.probability, rule.distance, rule.group, vectors=vectors, known=known)
    return Test() if rule is ratio else None


def _verify_tree(p: LazyProbs, draft: TreeDraft, rule: Accept, accept_u: Tensor, resample_u: Tensor) -> TreeVerdict:
    """`mmspec.sampling.tree_rejection.verify_tree`, in two launches and one wait for the device."""
    branches = _branches(draft)
    if rule is not ratio or branches is None:
        return verify_tree(p.dense(), draft, rule, accept_u, resample_u)
    tokens, accepted, tested, path = walk(p.stats, branches, accept_u, resample_u)
    wrong = tokens.gather(1, accepted[:, None]) < 0
    told = torch.cat([accepted[:, None], tested[:, None], wrong.long(), path], dim=1).cpu().numpy()
    if told[:, 2].any():
        raise ModelError(_INVALID)
    steps = torch.arange(branches.height + 1, device=path.device)
    entry = F.pad(path, (1, 0)).gather(1, steps.minimum(accepted[:, None]))
    row = torch.arange(len(path), device=path.device)[:, None]
    return TreeVerdict(tokens, told[:, 0], told[:, 1], told[:, 3:], p[row, entry])


def _branches(draft: TreeDraft) -> Branches | None:
    """A draft as the walk takes it; None where siblings were drawn in a way that it does not know."""
    tree, siblings = draft.tree, draft.siblings
    shape = draft.tokens, tree.children, tree.height
    match siblings:
        case WithoutReplacement():
            return Branches(*shape, WITHOUT_REPLACEMENT, _plain(siblings.probs))
        case Independent():
            return Branches(*shape, INDEPENDENT, _plain(siblings.probs))
        case Chosen():
            return Branches(*shape, CHOSEN, None)
    return None


def _verify_columns(p: LazyProbs, draft: Draft, rule: Accept, draws: WindowRNG, free: Tensor | None) -> Verdict:
    """`mmspec.sampling.multi_codebook.verify_columns`, in two launches and one wait for the device."""
    if rule is not ratio:
        verdict = verify_columns(p.dense(), Draft(draft.tokens, _plain(draft.q)), rule, draws, free)
        return Verdict(verdict.tokens, verdict.accepted, p, draft, verdict.excess)
    device, (batch, width, cells) = p.device, p.shape[:3]
    free = torch.ones(batch, width, cells, dtype=torch.bool, device=device) if free is None else free
    seeds, positions, iteration = (
        torch.from_numpy(n).to(device, non_blocking=True)
        for n in (draws.rng.seeds, draws.positions, draws.iteration.copy())
    )
    probs, own = p.stats.view(batch, width * cells), _stats_of(draft.q).view(batch, (width - 1) * cells)
    x = entries(draft.tokens, p.shape[-1])
    first, resampled = columns(probs, own, x, free, seeds, positions, iteration, MOST_DRAWS)
    told = torch.stack([first, (resampled < 0).any(1).long()]).cpu().numpy()
    if told[1].any():
        raise ModelError(_INVALID)
    return Verdict(behind(draft.tokens, first, resampled), told[0], p, draft)


def _ratio(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
    """`mmspec.sampling.rejection.ratio`."""
    of_p, of_q = (
        at(*probs.stats.source(), x) if isinstance(probs, LazyProbs) else probs.gather(-1, x[..., None])[..., 0]
        for probs in (p, q)
    )
    return of_p / of_q


def _residual(p: Tensor, q: Tensor) -> Any:
    """`mmspec.sampling.rejection.residual`."""
    return _Left(p, _stats_of(q)) if isinstance(p, LazyProbs) else residual(p, _plain(q))


def _point_mass(q: LazyProbs, tokens: Tensor, first: int, new: NDArray[np.bool_]) -> LazyProbs:
    """`mmspec.sampling.rejection.point_mass`."""
    ones = point_mass_stats(q.stats, tokens)
    where = torch.from_numpy(np.pad(new, ((0, 0), (first, 0), (0, 0))[: new.ndim])).to(tokens.device)[..., None]
    floats, ints = torch.where(where, ones.floats, q.stats.floats), torch.where(where, ones.ints, q.stats.ints)
    return LazyProbs.known(replace(q.stats, floats=floats, ints=ints))


def _index(probs: LazyProbs, index: Any) -> Any:
    """Some of the slots, by an index of the axes B and W."""
    axes = index if isinstance(index, tuple) else (index,)
    if len(axes) > 2 or any(isinstance(axis, int) or axis is None or axis is Ellipsis for axis in axes):
        return probs.dense()[index]
    found = LazyProbs.known(probs.stats[index])
    found._sound = probs._sound
    return found


def _unflatten(probs: LazyProbs, dim: int, sizes: Sequence[int]) -> LazyProbs:
    """Distributions [B, W, K, V] of distributions [B, W * K, V] that nobody has looked at yet."""
    assert dim == 1 and probs._stats is None
    cells = _shell((probs.shape[0], *sizes, probs.shape[-1]), probs.device)
    cells._logits, cells._settings = probs._logits, probs._settings
    return cells


_SHAPES: set[Any] = {
    Tensor.shape.__get__,  # type: ignore[attr-defined]
    Tensor.device.__get__,
    Tensor.dtype.__get__,  # type: ignore[attr-defined]
    Tensor.ndim.__get__,  # type: ignore[attr-defined]
    Tensor.__len__,
    Tensor.size,
}
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    sample: _sample,
    verify: _verify,
    verify_tree: _verify_tree,
    verify_columns: _verify_columns,
    ratio: _ratio,
    residual: _residual,
    point_mass: _point_mass,
    Tensor.__getitem__: _index,
    Tensor.unflatten: _unflatten,
}
