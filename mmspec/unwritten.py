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

from mmspec.errors import ModelError
from mmspec.kernels.accept import Test, committed
from mmspec.kernels.residual import redraw
from mmspec.kernels.rows import Settings, look
from mmspec.kernels.slots import Slots, at, pinned, written
from mmspec.law import Logits
from mmspec.rules import Accept
from mmspec.verify import Draft, Verdict, pin, ratio, residual, sample, verify

_NOT_A_LAW = "the model gave logits that are not numbers (NaN), or forbade every token of a position"


class Unwritten(Tensor):
    """Laws float32 [B, W, V] that are known by their logits and settings."""

    _logits: Logits | None
    _settings: Settings | None
    _slots: Slots | None
    _u: Tensor | None
    _drawn: Tensor | None
    _dense: Tensor | None

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
        found = look(self._logits.cond, self._logits.uncond, self._settings, u, drafts)
        self._slots, self._u, self._drawn = found.slots, u, found.tokens
        self._logits = self._settings = None
        return found.chance

    @property
    def slots(self) -> Slots:
        if self._slots is None:
            with torch._C.DisableTorchFunctionSubclass():
                u = torch.zeros(self.shape[:2], device=self.device)
            self.look(u)
        assert self._slots is not None
        return self._slots

    def draw(self, u: Tensor) -> Tensor:
        """A token of each slot at `u` [B, W], int64; -1 where it is not a law."""
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
    """(p - q)+ of laws that are not written out."""

    def __init__(self, p: Unwritten, q: Unwritten) -> None:
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
    return laws


def _sample(weights: Unwritten | _Left, u: Tensor, fallback: Tensor | None = None) -> Tensor:
    """`mmspec.verify.sample`."""
    if isinstance(weights, _Left):
        tokens = redraw(weights.p.slots, weights.q.slots, torch.ones_like(u, dtype=torch.bool), u)
    else:
        tokens = weights.draw(u)
    if bool((tokens < 0).any()):
        raise ModelError(_NOT_A_LAW)
    return tokens


def _verify(p: Unwritten, draft: Draft, rule: Accept, accept_u: Tensor, redraw_u: Tensor) -> Verdict:
    """`mmspec.verify.verify`, in three launches and one wait for the device."""
    m = len(accept_u[0]) - 1
    if m == 0 or rule is not ratio:
        if m == 0:
            p.look(redraw_u)
        verdict = verify(p.dense(), draft, rule, accept_u, redraw_u)
        verdict.p = p
        return verdict
    x, q = draft.tokens, draft.q.slots if isinstance(draft.q, Unwritten) else written(draft.q)
    chance = p.look(redraw_u, F.pad(x, (0, 1), value=-1))
    tested = p.slots[:, :m]
    chance = at(*tested.source(), x) if chance is None else chance[:, :m]
    first, _ = committed(tested, q, x, chance, accept_u[:, :m], Test())
    slot = torch.arange(m + 1, device=x.device)
    todo = slot == first[:, None]
    redrawn = redraw(tested, q, todo[:, :m], redraw_u[:, :m])
    replaced = torch.cat([redrawn, p.draw(redraw_u)[:, m:]], dim=1)
    tokens = torch.where(todo, replaced, F.pad(x, (0, 1)))
    told = torch.stack([first, (todo & (tokens < 0)).any(1).long()]).cpu().numpy()
    if told[1].any():
        raise ModelError(_NOT_A_LAW)
    return Verdict(tokens, told[0], p, draft)


def _ratio(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
    """`mmspec.verify.ratio`."""
    of_p, of_q = (
        at(*law.slots.source(), x) if isinstance(law, Unwritten) else law.gather(-1, x[..., None])[..., 0]
        for law in (p, q)
    )
    return of_p / of_q


def _residual(p: Tensor, q: Tensor) -> Any:
    """`mmspec.verify.residual`."""
    if isinstance(p, Unwritten) and isinstance(q, Unwritten):
        return _Left(p, q)
    return residual(*(law.dense() if isinstance(law, Unwritten) else law for law in (p, q)))


def _pin(q: Unwritten, tokens: Tensor, first: int, new: NDArray[np.bool_]) -> Unwritten:
    """`mmspec.verify.pin`."""
    ones = pinned(q.slots, tokens)
    where = torch.from_numpy(np.pad(new, ((0, 0), (first, 0)))).to(tokens.device)[..., None]
    reals, wholes = torch.where(where, ones.reals, q.slots.reals), torch.where(where, ones.wholes, q.slots.wholes)
    return Unwritten.known(replace(q.slots, reals=reals, wholes=wholes))


def _index(laws: Unwritten, index: Any) -> Any:
    """Some of the slots, by an index of the axes B and W."""
    axes = index if isinstance(index, tuple) else (index,)
    if len(axes) > 2 or any(isinstance(axis, int) or axis is None or axis is Ellipsis for axis in axes):
        return laws.dense()[index]
    return Unwritten.known(laws.slots[index])


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
    ratio: _ratio,
    residual: _residual,
    pin: _pin,
    Tensor.__getitem__: _index,
}
