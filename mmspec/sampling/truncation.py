"""Truncation of a target distribution after temperature and top-k: by top-p (nucleus), min-p and local typicality."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_PRESELECTED = 2048  # tokens that are sorted first on a CPU
_MARGIN = 1e-5  # of a running sum in float32, whose rounding errors are smaller


def keep_top_p(p: Tensor, top_p: Tensor, inplace: bool = False) -> Tensor:
    """Keeps, in descending order, every token before which less than `top_p` of the mass lies, and renormalizes.

    Of equally likely tokens the one with the lower id comes first.

    Args:
        p: float32 [..., V].
        top_p: Broadcasts against `p`; 1 keeps all.
        inplace: Whether the result may overwrite `p`.
    """
    if p.device.type != "cpu":
        ordered, index = p.sort(dim=-1, descending=True, stable=True)
        dropped = torch.zeros_like(p, dtype=torch.bool).scatter_(-1, index, _is_dropped(ordered, top_p))
    else:
        rows = p.detach().flatten(0, -2)
        limits = top_p.expand(*p.shape[:-1], 1).flatten(0, -2)
        dropped = torch.from_numpy(_dropped(rows.numpy(), limits)).view(p.shape)
    dropped &= top_p < 1
    kept = p.masked_fill_(dropped, 0.0) if inplace else p.masked_fill(dropped, 0.0)
    total = kept.sum(-1, keepdim=True).masked_fill(top_p >= 1, 1.0)
    return kept.div_(total) if inplace else kept / total


def _is_dropped(ordered: Tensor, top_p: Tensor) -> Tensor:
    """Which tokens of a distribution in descending order are dropped."""
    before = ordered.cumsum(-1) - ordered
    return (before >= top_p) & (before > 0)


def _dropped(p: NDArray[np.float32], top_p: Tensor) -> NDArray[np.bool_]:
    """Which tokens of p [R, V] are dropped by top_p [R, 1], bool [R, V], the same as by `_is_dropped`."""
    # Only the largest values are sorted: a sort of a whole vocabulary with its ids takes about eight times as long.
    vocab = p.shape[1]
    if vocab <= _PRESELECTED:
        return _beyond_nucleus(p, np.sort(p, axis=-1), top_p)
    largest = np.sort(np.partition(p, vocab - _PRESELECTED, axis=-1)[:, -_PRESELECTED:], axis=-1)
    # Tokens that are not preselected are dropped for certain where the others have more mass than top_p.
    enough = _before_last(largest) > top_p.numpy()[:, 0] + _MARGIN
    if enough.all():
        return _beyond_nucleus(p, largest, top_p)
    dropped = np.empty(p.shape, dtype=bool)
    dropped[enough] = _beyond_nucleus(p[enough], largest[enough], top_p[enough])
    short = ~enough
    dropped[short] = _beyond_nucleus(p[short], np.sort(p[short], axis=-1), top_p[short])
    return dropped


def _before_last(ascending: NDArray[np.float32]) -> NDArray[np.float64]:
    """The mass of all values but the least, float64 [R]."""
    mass: NDArray[np.float64] = ascending[:, 1:].sum(-1, dtype=np.float64)
    return mass


def _beyond_nucleus(p: NDArray[np.float32], largest: NDArray[np.float32], top_p: Tensor) -> NDArray[np.bool_]:
    """Which tokens are dropped, bool [R, V]; `largest` has at least a row's nucleus, ascending, and one more."""
    ordered = torch.from_numpy(largest[:, ::-1].copy())
    is_dropped = _is_dropped(ordered, top_p).numpy()
    count = (~is_dropped).sum(-1, keepdims=True)  # tokens in the nucleus, at least one
    least = np.take_along_axis(largest, largest.shape[1] - count, axis=-1)
    # A sum that is rounded may pass top_p twice, and NaN is less than nothing: both need the ranks of all tokens.
    odd = (is_dropped != (np.arange(largest.shape[1]) >= count)).any(-1) | np.isnan(least[:, 0])
    dropped = p < least
    tied = ((~dropped).sum(-1) != count[:, 0]) & (least[:, 0] > 0)
    for row in np.flatnonzero(tied & ~odd):
        last = np.flatnonzero(p[row] == least[row])
        dropped[row, last[int(count[row, 0] - (p[row] > least[row]).sum()) :]] = True
    if odd.any():
        values, index = torch.from_numpy(p[odd]).sort(dim=-1, descending=True, stable=True)
        ranked = _is_dropped(values, top_p[torch.from_numpy(odd)])
        dropped[odd] = torch.zeros_like(ranked).scatter_(-1, index, ranked).numpy()
    return dropped


def keep_min_p(p: Tensor, min_p: Tensor) -> Tensor:
    """Keeps every token at least `min_p` times as likely as the most likely one, and renormalizes (min-p sampling).

    From Nguyen et al. 2024, arXiv 2407.01082.

    Args:
        p: float32 [..., V].
        min_p: Broadcasts against `p`; 0 keeps all.
    """
    kept = p.masked_fill(p < min_p * p.amax(-1, keepdim=True), 0.0)
    return torch.where(min_p > 0, kept / kept.sum(-1, keepdim=True), p)


def keep_typical(p: Tensor, typical_p: Tensor) -> Tensor:
    """Keeps the tokens whose information is closest to the entropy, up to a mass, and renormalizes (typical sampling).

    From Meister et al. 2022, arXiv 2202.00666. Tokens as far from the entropy as the last one that is kept are kept.

    Args:
        p: float32 [..., V].
        typical_p: Broadcasts against `p`; the mass to keep, 1 keeps all.
    """
    information = -p.log()
    entropy = torch.where(p > 0, p * information, 0.0).sum(-1, keepdim=True)
    distance = (information - entropy).abs()
    ordered, index = distance.sort(dim=-1)
    count = (p.gather(-1, index).cumsum(-1) < typical_p).sum(-1, keepdim=True)
    last = ordered.gather(-1, count.clamp(max=p.shape[-1] - 1))
    kept = p.masked_fill(distance > last, 0.0)
    return torch.where(typical_p < 1, kept / kept.sum(-1, keepdim=True), p)
