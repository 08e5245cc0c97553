"""Probabilities that are not written out: what `mmspec.law.Law` gives where the Triton kernels run.

The loop, the drafters and the rules are written for tensors [B, W, V]. On a device such tensors are what verification
costs: each is written once and read several times, while the kernels need the logits once. So here the law is a tensor
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

from mmspec.columns import MOST_DRAWS, behind, entries, verify_columns
from mmspec.errors import ModelError
from mmspec.kernels.accept import Test, committed
from mmspec.kernels.columns import columns
from mmspec.kernels.residual import redraw
from mmspec.kernels.rows import Settings, look
from mmspec.kernels.slots import TOTAL, Slots, at, pinned, written
from mmspec.kernels.tree import CHOSEN, INDEPENDENT, WITHOUT_REPLACEMENT, Branches, walk
from mmspec.law import Logits
from mmspec.noise import Draws
from mmspec.rules import Accept
from mmspec.rules.gsd import Grouped
from mmspec.rules.lantern import Additive, Multiplicative
from mmspec.rules.scalar import Beta, Ensemble, Omega
from mmspec.tree import Chosen, Independent, TreeDraft, WithoutReplacement
from mmspec.tree_verify import TreeVerdict, verify_tree
from mmspec.verify import Draft, Verdict, pin, ratio, residual, sample, verify

_NOT_A_LAW = "the model gave logits that are not numbers (NaN), or forbade every token of a position"


class Unwritten(Tensor):
    """Laws float32 [B, W, V], or [B, W, K, V] of cells, that are known by their logits and settings."""

    _logits: Logits | None  # [B, W * K, V]
    _settings: Settings | None
    _slots: Slots | None
    _u: Tensor | None
    _drawn: Tensor | None
    _dense: Tensor | None
    _sound: bool  # whether all are known to be laws, so that nobody need ask again and wait for the device

    @staticmethod
    def of(logits: Logits, settings: Settings) -> Unwritten:
        """The laws of a window that nobody has looked at yet."""
        laws = _shell(logits.cond.shape, logits.cond.device)
        laws._logits, laws._settings = logits, settings
        return laws

    @staticmethod
    def known(slots: Slots) -> Unwritten:
        """The laws of slots a kernel has looked through."""
        laws = _shell(slots.shape, slots.device)
        laws._slots = slots
        return laws

    def look(self, u: Tensor, drafts: Tensor | None = None) -> Tensor | None:
        """Looks through the logits unless that was done, and draws at `u` meanwhile; the drafts' probabilities."""
        if self._slots is not None:
            return None
        assert self._logits is not None and self._settings is not None
        found = look(self._logits.cond, self._logits.uncond, self._settings, u.flatten(1), drafts)
        self._slots, self._u, self._drawn = found.slots.view(*u.shape), u, found.tokens.view(u.shape)
        self._logits = self._settings = None
        return found.chance

    @property
    def slots(self) -> Slots:
        if self._slots is None:
            with torch._C.DisableTorchFunctionSubclass():
                u = torch.zeros(self.shape[:-1], device=self.device)
            self.look(u)
        assert self._slots is not None
        return self._slots

    def draw(self, u: Tensor) -> Tensor:
        """A token of each slot at `u` [B, W, ...], int64; -1 where it is not a law."""
        self.look(u)
        if self._drawn is not None and self._u is u:
            return self._drawn
        nothing = pinned(self.slots, torch.full(u.shape, self.slots.shape[-1], device=u.device))
        return redraw(self.slots, nothing, torch.ones_like(u, dtype=torch.bool), u)

    def dense(self) -> Tensor:
        """The probabilities themselves."""
        if self._dense is None:
            self._dense = self.slots.dense()
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
        plain = tree_map_only(Unwritten, Unwritten.dense, (args, dict(kwargs or {})))
        return func(*plain[0], **plain[1])


class _Left:
    """(p - q)+ of a law that is not written out, and another."""

    def __init__(self, p: Unwritten, q: Slots) -> None:
        self.p, self.q = p, q

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        return _FUNCTIONS[func](*args, **(kwargs or {}))


def _shell(shape: Sequence[int], device: torch.device) -> Unwritten:
    laws = Tensor._make_wrapper_subclass(Unwritten, tuple(shape), dtype=torch.float32, device=device)
    laws._logits = laws._settings = laws._slots = laws._u = laws._drawn = laws._dense = None
    laws._sound = False
    return laws


def _plain(law: Tensor) -> Tensor:
    """The probabilities themselves, whichever way they are known."""
    return law.dense() if isinstance(law, Unwritten) else law


def _slots_of(law: Tensor) -> Slots:
    """The slots of laws [B, m, ..., V], whichever way they are known."""
    return law.slots if isinstance(law, Unwritten) else written(law.flatten(1, -2)).view(*law.shape[:-1])


def _sample(weights: Unwritten | _Left, u: Tensor, fallback: Tensor | None = None) -> Tensor:
    """`mmspec.verify.sample`."""
    if isinstance(weights, _Left):
        sound = weights.p._sound
        tokens = redraw(weights.p.slots, weights.q, torch.ones_like(u, dtype=torch.bool), u)
    else:
        sound = weights._sound
        tokens = weights.draw(u)
    if not sound and bool((tokens < 0).any()):
        raise ModelError(_NOT_A_LAW)
    return tokens


def _verify(p: Unwritten, draft: Draft, rule: Accept, accept_u: Tensor, redraw_u: Tensor) -> Verdict:
    """`mmspec.verify.verify`, in three launches and one wait for the device."""
    m = accept_u.shape[1] - 1
    if m == 0:
        return Verdict(sample(p, redraw_u), np.zeros(len(accept_u), dtype=np.int64), p, draft)
    test = _test(rule, p.device)
    if test is None:
        verdict = verify(p.dense(), draft, rule, accept_u, redraw_u)
        verdict.p = p
        return verdict
    x, q = draft.tokens, _slots_of(draft.q)
    chance = p.look(redraw_u, F.pad(x, (0, 1), value=-1))
    tested = p.slots[:, :m]
    chance = at(*tested.source(), x) if chance is None else chance[:, :m]
    first, excess = committed(tested, q, x, chance, accept_u[:, :m], test)
    slot = torch.arange(m + 1, device=x.device)
    todo = slot == first[:, None]
    redrawn = redraw(tested, q, todo[:, :m], redraw_u[:, :m])
    replaced = torch.cat([redrawn, p.draw(redraw_u)[:, m:]], dim=1)
    tokens = torch.where(todo, replaced, F.pad(x, (0, 1)))
    wrong = p.slots.reals[..., TOTAL].isnan().any(1)
    told = torch.stack([first, (todo & (tokens < 0)).any(1).long(), wrong.long()]).cpu().numpy()
    if told[1].any():
        raise ModelError(_NOT_A_LAW)
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


def _verify_tree(p: Unwritten, draft: TreeDraft, rule: Accept, accept_u: Tensor, redraw_u: Tensor) -> TreeVerdict:
    """`mmspec.tree_verify.verify_tree`, in two launches and one wait for the device."""
    branches = _branches(draft)
    if rule is not ratio or branches is None:
        return verify_tree(p.dense(), draft, rule, accept_u, redraw_u)
    tokens, accepted, tested, path = walk(p.slots, branches, accept_u, redraw_u)
    wrong = tokens.gather(1, accepted[:, None]) < 0
    told = torch.cat([accepted[:, None], tested[:, None], wrong.long(), path], dim=1).cpu().numpy()
    if told[:, 2].any():
        raise ModelError(_NOT_A_LAW)
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
            return Branches(*shape, WITHOUT_REPLACEMENT, _plain(siblings.laws))
        case Independent():
            return Branches(*shape, INDEPENDENT, _plain(siblings.laws))
        case Chosen():
            return Branches(*shape, CHOSEN, None)
    return None


def _verify_columns(p: Unwritten, draft: Draft, rule: Accept, draws: Draws, free: Tensor | None) -> Verdict:
    """`mmspec.columns.verify_columns`, in two launches and one wait for the device."""
    if rule is not ratio:
        verdict = verify_columns(p.dense(), Draft(draft.tokens, _plain(draft.q)), rule, draws, free)
        return Verdict(verdict.tokens, verdict.accepted, p, draft, verdict.excess)
    device, (batch, width, cells) = p.device, p.shape[:3]
    free = torch.ones(batch, width, cells, dtype=torch.bool, device=device) if free is None else free
    seeds, positions, iteration = (
        torch.from_numpy(n).to(device, non_blocking=True)
        for n in (draws.noise.seeds, draws.positions, draws.iteration.copy())
    )
    law, own = p.slots.view(batch, width * cells), _slots_of(draft.q).view(batch, (width - 1) * cells)
    x = entries(draft.tokens, p.shape[-1])
    first, redrawn = columns(law, own, x, free, seeds, positions, iteration, MOST_DRAWS)
    told = torch.stack([first, (redrawn < 0).any(1).long()]).cpu().numpy()
    if told[1].any():
        raise ModelError(_NOT_A_LAW)
    return Verdict(behind(draft.tokens, first, redrawn), told[0], p, draft)


def _ratio(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
    """`mmspec.verify.ratio`."""
    of_p, of_q = (
        at(*law.slots.source(), x) if isinstance(law, Unwritten) else law.gather(-1, x[..., None])[..., 0]
        for law in (p, q)
    )
    return of_p / of_q


def _residual(p: Tensor, q: Tensor) -> Any:
    """`mmspec.verify.residual`."""
    return _Left(p, _slots_of(q)) if isinstance(p, Unwritten) else residual(p, _plain(q))


def _pin(q: Unwritten, tokens: Tensor, first: int, new: NDArray[np.bool_]) -> Unwritten:
    """`mmspec.verify.pin`."""
    ones = pinned(q.slots, tokens)
    where = torch.from_numpy(np.pad(new, ((0, 0), (first, 0), (0, 0))[: new.ndim])).to(tokens.device)[..., None]
    reals, wholes = torch.where(where, ones.reals, q.slots.reals), torch.where(where, ones.wholes, q.slots.wholes)
    return Unwritten.known(replace(q.slots, reals=reals, wholes=wholes))


def _index(laws: Unwritten, index: Any) -> Any:
    """Some of the slots, by an index of the axes B and W."""
    axes = index if isinstance(index, tuple) else (index,)
    if len(axes) > 2 or any(isinstance(axis, int) or axis is None or axis is Ellipsis for axis in axes):
        return laws.dense()[index]
    found = Unwritten.known(laws.slots[index])
    found._sound = laws._sound
    return found


def _unflatten(laws: Unwritten, dim: int, sizes: Sequence[int]) -> Unwritten:
    """Laws [B, W, K, V] of laws [B, W * K, V] that nobody has looked at yet."""
    assert dim == 1 and laws._slots is None
    cells = _shell((laws.shape[0], *sizes, laws.shape[-1]), laws.device)
    cells._logits, cells._settings = laws._logits, laws._settings
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
    pin: _pin,
    Tensor.__getitem__: _index,
    Tensor.unflatten: _unflatten,
}
