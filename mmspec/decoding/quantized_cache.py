"""Keys and values in 8 or 4 bits, for caches that do not fit in memory.

Each vector of a head is quantized on its own, from its least to its largest element (asymmetric, as the caches of
KIVI, arXiv 2402.02750, and GEAR, arXiv 2403.05527, for values). The quantized cache of transformers keeps the latest
tokens in full precision and cannot be rolled back; a window would read other values than single tokens do. Here what is
written depends on the vector alone, so that windows, roll-back and batches give what plain decoding gives under the
same cache: recipes stay exact, for the target with this cache. What the cache itself costs is measured by
`cache_distance`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mmspec.errors import ArgumentError
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.probs import dense
from mmspec.sampling.rows import put_rows
from mmspec.sampling.sampler import Sampler

if TYPE_CHECKING:
    from mmspec.decoding.gear import Gear

_BITS: ContextVar[int | None] = ContextVar("bits of new KV caches", default=None)
_GEAR: ContextVar[Gear | None] = ContextVar("correction of new KV caches", default=None)


@contextmanager
def quantized_cache(bits: int, gear: Gear | None = None) -> Iterator[None]:
    """KV caches that are made inside of the context, by pipelines called in it, hold `bits` bits per number.

    Args:
        bits: 8 or 4.
        gear: What they keep besides; None for nothing.

    Raises:
        ArgumentError: For any other number.
    """
    if bits not in (4, 8):
        raise ArgumentError(f"bits={bits} is not allowed; a KV cache holds 8 or 4 bits per number")
    token, other = _BITS.set(bits), _GEAR.set(gear)
    try:
        yield
    finally:
        _BITS.reset(token)
        _GEAR.reset(other)


def cache_bits() -> int | None:
    """Bits per number of caches that are made now; None for the dtype of the model."""
    return _BITS.get()


@dataclass
class QuantizedStore:
    """Keys or values; its parts are indexed by row and slot as a tensor of keys is.

    Attributes:
        codes: uint8 [..., capacity, head_dim], or with 4 bits two in a byte, [..., capacity, head_dim / 2].
        scale: float32 [..., capacity, 2], the step and the least element of each vector.
        bits: 8 or 4.
        dtype: Of the keys that are read.
        gear: What is kept besides; None for nothing.
        kept: The parts of that, see `Gear.zeros`; empty without.
    """

    codes: Tensor
    scale: Tensor
    bits: int
    dtype: torch.dtype
    gear: Gear | None = None
    kept: tuple[Tensor, ...] = ()

    @staticmethod
    def zeros(
        shape: Sequence[int], bits: int, dtype: torch.dtype, device: torch.device | None = None
    ) -> QuantizedStore:
        """An empty store of vectors [..., capacity, head_dim].

        Raises:
            ArgumentError: If vectors of odd length were to have 4 bits.
        """
        *most, width = shape
        if bits == 4 and width % 2:
            raise ArgumentError(f"a KV cache of 4 bits needs heads of even width, and this model's have {width}")
        codes = torch.zeros(*most, width * bits // 8, dtype=torch.uint8, device=device)
        gear = _GEAR.get()
        kept = () if gear is None else gear.zeros(shape, device)
        return QuantizedStore(codes, torch.zeros(*most, 2, device=device), bits, dtype, gear, kept)

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """Codes and scales, then what is kept besides."""
        return self.codes, self.scale, *self.kept

    def encode(self, states: Tensor) -> tuple[Tensor, ...]:
        """The parts of keys or values [R, heads, W, head_dim]."""
        if self.gear is None:
            return quantize(states, self.bits)
        plain, values, places = self.gear.without_outliers(states.float())
        codes, scale = quantize(plain, self.bits)
        error = plain - dequantize(codes, scale, self.bits, torch.float32)
        parts = (codes, scale, values, places, *self.gear.factors(error))
        return tuple(new.to(own.dtype) for new, own in zip(parts, self.parts, strict=True))

    def decode(self, parts: Sequence[Tensor]) -> Tensor:
        """Keys or values [R, heads, S, head_dim] of their parts."""
        codes, scale, *kept = parts
        if self.gear is None:
            return dequantize(codes, scale, self.bits, self.dtype)
        return self.gear.restore(dequantize(codes, scale, self.bits, torch.float32), kept).to(self.dtype)

    @property
    def shape(self) -> torch.Size:
        """The shape of the vectors, [..., capacity, head_dim]."""
        return torch.Size([*self.codes.shape[:-1], self.codes.shape[-1] * 8 // self.bits])

    @property
    def device(self) -> torch.device:
        return self.codes.device

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self.parts)

    def __getitem__(self, index: Any) -> QuantizedStore:
        return self.map(lambda part: part[index])

    def map(self, change: Callable[[Tensor], Tensor]) -> QuantizedStore:
        """The store whose parts are changed by a function that leaves the last axis alone."""
        kept = tuple(change(part) for part in self.kept)
        return QuantizedStore(change(self.codes), change(self.scale), self.bits, self.dtype, self.gear, kept)

    def put_rows(self, other: QuantizedStore, row_ids: Sequence[int], dim: int, cfg_factor: int) -> QuantizedStore:
        pairs = zip(self.parts, other.parts, strict=True)
        codes, scale, *kept = (put_rows(own, new, row_ids, dim, cfg_factor) for own, new in pairs)
        return QuantizedStore(codes, scale, self.bits, self.dtype, self.gear, tuple(kept))


def quantize(states: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Codes and scales of vectors [..., head_dim]; see `QuantizedStore`."""
    states = states.float()
    low, high = states.aminmax(dim=-1, keepdim=True)
    step = ((high - low) / (2**bits - 1)).clamp(min=torch.finfo(torch.float32).tiny)
    codes = ((states - low) / step).round().clamp(0, 2**bits - 1).to(torch.uint8)
    if bits == 4:
        codes = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return codes, torch.cat([step, low], dim=-1)


def dequantize(codes: Tensor, scale: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    """Vectors [..., head_dim] from codes and scales."""
    if bits == 4:
        codes = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2)
    return torch.addcmul(scale[..., 1:], codes.float(), scale[..., :1]).to(dtype)


def cache_distance(
    make: Callable[[], Any], sampler: Sampler, tokens: Tensor, bits: int, gear: Gear | None = None
) -> Tensor:
    """How far a quantized cache moves the target distribution: total variation at each token, float32 [B, N].

    Args:
        make: Makes the target with its prompts, before its prefill.
        sampler: Makes the target distribution from logits; see `mmspec.decoding.layout.Layout.sampler`.
        tokens: int64 [B, N], sequences that are read in one window each.
        bits: 8 or 4.
    """

    def probs() -> Tensor:
        target = make()
        first = dense(sampler(target.prefill(), Numbers(np.zeros((len(tokens), 1), dtype=np.int64))))
        positions = Numbers(np.tile(np.arange(1, tokens.shape[1]), (len(tokens), 1)))
        later = dense(sampler(target.forward(tokens[:, :-1], np.zeros(len(tokens), dtype=np.int64)), positions))
        return torch.cat([first, later], dim=1)

    with torch.inference_mode():
        whole = probs()
        with quantized_cache(bits, gear):
            return (probs() - whole).abs().sum(-1) / 2
