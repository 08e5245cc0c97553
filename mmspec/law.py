"""The law of a position: what a model's logits become before a token is drawn.

The order is fixed: guidance (in float32), tokens forbidden at the position, temperature, top-k, top-p, softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.errors import ArgumentError
from mmspec.kernels.launch import choose
from mmspec.noise import ACCEPT, REDRAW, Draws
from mmspec.rules import Accept
from mmspec.verify import Draft, Verdict, sample, verify

NO_END = 2**62


class Logits(NamedTuple):
    """What a target says about a window: `cond` [B, W, V], and `uncond` of the same shape when guidance is on."""

    cond: Tensor
    uncond: Tensor | None


@dataclass(frozen=True)
class Sampling:
    """How one row wants its tokens drawn.

    **Arguments:**

    - `temperature`: 0 takes the most likely token; otherwise at least 0.0001.
    - `top_k`: keep the k most likely tokens (ties with the k-th stay); 0 keeps all.
    - `top_p`: in (0, 1]; keep the smallest set of most likely tokens with at least this mass.
    - `guidance_scale`: classifier-free guidance `uncond + s * (cond - uncond)`, 0 to 10000; 1 is off.
    - `guidance_end`: the first position that is not guided any more; None guides all.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    guidance_scale: float = 1.0
    guidance_end: int | None = None

    def __post_init__(self) -> None:
        def check(name: str, ok: Callable[[Any], bool], allowed: str, kind: type = Real) -> None:
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, bool) or not ok(value):
                raise ArgumentError(f"{name}={value!r} is not allowed; it must be {allowed}")

        check("temperature", lambda t: t == 0 or 1e-4 <= t < math.inf, "0 (greedy) or at least 0.0001")
        check("top_k", lambda k: 0 <= k < 2**31, "an integer, 0 (off) or more", Integral)
        check("top_p", lambda p: 0 < p <= 1, "above 0 and at most 1 (off)")
        check("guidance_scale", lambda s: 0 <= s <= 1e4, "from 0 to 10000 (1 is off)")


class Forced:
    """The tokens that positions are forced to, in all rows alike or in each row its own; -1 where nothing is forced.

    **Arguments:**

    - `tokens`: host int64 [N], or [B, N].
    """

    def __init__(self, tokens: NDArray[np.int64]) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return self.tokens.shape[-1]

    def __getitem__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of one position per row, host int64 [B]."""
        return self.tokens[positions] if self.tokens.ndim == 1 else self.tokens[np.arange(len(positions)), positions]


class Constraint:
    """Which tokens each position allows, in all rows alike or in each row its own.

    **Arguments:**

    - `kind`: int64 [N], the kind of each position; or [B, N], of each position of each row.
    - `allowed`: bool [kinds, V], the tokens each kind allows; a kind that allows one token forces it.
    """

    def __init__(self, kind: Tensor, allowed: Tensor) -> None:
        if not bool(allowed.any(dim=-1).all()):
            raise ArgumentError("allowed has a row without a single token; every kind of position needs at least one")
        self.kind = kind
        self.allowed = allowed
        self._only = torch.where(allowed.sum(-1) == 1, allowed.int().argmax(-1), -1).cpu().numpy()

    @cached_property
    def forced(self) -> Forced:
        """The token of each position that allows but one."""
        return Forced(self._only[self.kind.cpu().numpy()])

    @property
    def rows(self) -> int | None:
        """B, where each row has its own; else None."""
        return len(self.kind) if self.kind.ndim == 2 else None

    def keep(self, rows: Tensor | list[int]) -> Constraint:
        """The same without all rows but these."""
        if self.rows is None:
            return self
        kept = copy(self)
        kept.kind = self.kind[rows]
        kept.__dict__.pop("forced", None)
        return kept

    def mask(self, positions: NDArray[np.int64]) -> Tensor:
        """Bool [B, W, V]: True where a token is forbidden. Positions (int64 [B, W]) past the end count as the last."""
        return ~self.allowed[self.kinds(positions)]

    def kinds(self, positions: NDArray[np.int64]) -> Tensor:
        """The kind of each position, int64 [B, W]."""
        inside = torch.from_numpy(positions.clip(max=self.kind.shape[-1] - 1)).to(self.kind.device, non_blocking=True)
        return self.kind[inside] if self.rows is None else self.kind.gather(1, inside)


class Law:
    """Turns logits into probabilities, each row with its own settings.

    **Arguments:**

    - `rows`: the settings of each row.
    - `constraint`: allowed tokens by position, or None.

    **Raises:** `ArgumentError` for a constraint of another number of rows.
    """

    def __init__(self, rows: Sequence[Sampling], constraint: Constraint | None, device: torch.device) -> None:
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

    def keep(self, rows: Tensor) -> None:
        """Drops all rows but these (int64 [rows'])."""
        for name in ("guidance", "guidance_end", "temperature", "greedy", "top_k", "top_p"):
            setattr(self, name, getattr(self, name)[rows])
        if self.constraint is not None:
            self.constraint = self.constraint.keep(rows)

    def sample(self, p: Tensor, draws: Draws, stream: int = REDRAW) -> Tensor:
        """Draws from probabilities [B, W, V]: int64 [B, W]."""
        return sample(p, draws[stream])

    def verify(self, p: Tensor, draft: Draft, rule: Accept, draws: Draws) -> Verdict:
        """Tests a draft under probabilities [B, W, V]; see `mmspec.verify.verify`."""
        return verify(p, draft, rule, draws[ACCEPT], draws[REDRAW])

    def __call__(self, logits: Logits, positions: NDArray[np.int64]) -> Tensor:
        """Probabilities float32 [B, W, V]; a greedy row gets all its mass on one token.

        **Arguments:**

        - `logits`: of the window.
        - `positions`: int64 [B, W], the position each slot stands for.

        Where the Triton kernels run they are not written out: see `mmspec.unwritten`. Kernels know no gradients.
        """
        if choose(logits.cond.device.type) == "triton" and not logits.cond.requires_grad:
            return self._unwritten(logits, positions)
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

    def _unwritten(self, logits: Logits, positions: NDArray[np.int64]) -> Tensor:
        from mmspec.kernels.rows import Settings
        from mmspec.unwritten import Unwritten

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
        return Unwritten.of(logits, settings)


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
