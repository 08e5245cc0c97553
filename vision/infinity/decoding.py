"""The decoding of Infinity, map by map: every bit is sampled by itself, from two logits.

The latent image is a sum of maps: the bits of a place are a point of the sphere, each coordinate 1 or -1 over the root
of their number (binary spherical quantization), enlarged to the size of the last map. Collaborative decoding (CoDe,
arXiv 2411.17787) works as for VAR: see `mmspec.vision.var.decoding`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.arguments import check_integer, check_number, shown
from mmspec.decoding.stats import Meter
from mmspec.errors import ArgumentError
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.rng import CounterRNG
from mmspec.sampling.sampler import TokenSampler
from mmspec.sampling.seeds import row_seeds
from mmspec.vision.infinity.transformer import LEVELS, InfinityTransformer, Size
from mmspec.vision.var.transformer import LayerCache

SIDE = 64  # of the last map of square images of 1024 pixels


class _Model:
    """One model with its texts and its cache; with guidance, the unconditional rows come after the others."""

    def __init__(
        self, model: InfinityTransformer, texts: Sequence[Tensor], guided: bool, sizes: Sequence[Size], extent: Size
    ) -> None:
        self.model, self._guided, self._sizes, self._extent = model, guided, sizes, extent
        # As in the original, an unconditional text has the length of its row's text.
        empty = [model.cfg_uncond[: len(text)] for text in texts] if guided else []
        self._read = model.read_texts([*(text.to(model.device, model.dtype) for text in texts), *empty])
        self._cache: list[LayerCache] = []
        self._maps = 0

    def logits(self, inputs: Sequence[Tensor], scale: float) -> Tensor:
        """Logits float32 [B, n, d, 2] of the maps that have not been read; `inputs` are those of all maps so far."""
        first, fresh = self._maps, [content.repeat(1 + self._guided, 1, 1) for content in inputs[self._maps :]]
        z, self._cache = self.model(self._read, fresh, self._sizes, self._extent, first, self._cache)
        self._maps = len(inputs)
        if not self._guided:
            return z
        cond, uncond = z.chunk(2)
        return scale * cond + (1 - scale) * uncond


def codes(bits: Tensor, size: Size, patch: int) -> Tensor:
    """Latents float32 [B, d, H, W] of the bits int64 [B, h * w, d * patch**2] of a map."""
    maps = bits.transpose(1, 2).unflatten(2, size).float()
    if patch > 1:
        maps = F.pixel_shuffle(maps, patch)
    return (2 * maps - 1) / maps.shape[1] ** 0.5


def next_input(latents: Tensor, size: Size, patch: int) -> Tensor:
    """The input [B, h * w, d * patch**2] of a map, from the latent image so far."""
    x = F.interpolate(latents, size=(size[0] * patch, size[1] * patch), mode="area")
    return (F.pixel_unshuffle(x, patch) if patch > 1 else x).flatten(2).transpose(1, 2)


def check_maps(name: str, sizes: Sequence[Size]) -> None:
    """Checks that sizes of maps are pairs of integers.

    Raises:
        ArgumentError: If one is not, or there are none.
    """
    whole = isinstance(sizes, (list, tuple)) and bool(sizes)
    if not whole or not all(isinstance(size, (list, tuple)) and len(size) == 2 for size in sizes):
        raise ArgumentError(f"{name}={shown(sizes)} is not allowed; it must be height and width of each map")
    for side in (side for size in sizes for side in size):
        check_integer(name, side, 1, 2**10)


@torch.no_grad()
def decode_bits(
    large: InfinityTransformer,
    texts: Sequence[Tensor],
    sizes: Sequence[Size],
    seeds: int | Sequence[int],
    meter: Meter,
    sampling: SamplingParams = SamplingParams(top_p=0.97),  # noqa: B008 (frozen)
    scale: float = 4.0,
    extent: Size | None = None,
    small: InfinityTransformer | None = None,
    large_maps: int | None = None,
) -> tuple[list[Tensor], Tensor]:
    """Generates all maps.

    Args:
        large: The model.
        texts: Features [T_row, C] of a text each, of the model's encoder (Flan-T5-XL).
        sizes: Height and width of each map, such as `(n, n)` for the first 7 of `SQUARE`.
        seeds: One, or one per row. A row's bits depend on its own seed and text.
        meter: Counts calls, tokens and seconds; calls of the small model are not counted.
        sampling: Temperature and top-p of a bit.
        scale: The guidance scale; 1 and below is off.
        extent: Height and width of the largest map that the model was trained on; None is (64, 64).
        small: The model of the last maps, with the same tokenizer; None for `large`.
        large_maps: The number of maps of `large`; None for all. Fewer are lossy.

    Returns:
        The bits int64 [B, h * w, d] of each map, and the latent image float32 [B, d, H, W], which the tokenizer's
        decoder turns into pixels.

    Raises:
        ArgumentError: If a text has another width than the model's or is too long, `large_maps` is not in 1..maps,
            `small` has other codes, there is another number of seeds than of texts, or a value is of another kind.
    """
    check_maps("sizes", sizes)
    if extent is not None:
        check_maps("extent", [extent])
    for name, value, kind in (("sampling", sampling, SamplingParams), ("small", small, InfinityTransformer)):
        if not isinstance(value, kind) and not (name == "small" and value is None):
            raise ArgumentError(f"{name}={shown(value)} is not allowed; it must be a {kind.__name__}")
    check_number("scale", scale, 0, 1e4)
    maps, patch = len(sizes), large.config.patch
    if maps > LEVELS:
        raise ArgumentError(f"sizes has {maps} maps; the model has embeddings for {LEVELS}")
    large_maps = maps if large_maps is None else large_maps
    check_integer("large_maps", large_maps, 1, maps)
    if large_maps < maps and small is None:
        raise ArgumentError(
            f"large_maps={large_maps} is not allowed; it must be from 1 to {maps}, less with a small model"
        )
    if small is not None and (small.config.bits, small.config.patch) != (large.config.bits, patch):
        raise ArgumentError(
            f"small has codes of {small.config.bits} bits and patch={small.config.patch}, the large model of "
            f"{large.config.bits} and {patch}; they must have the same tokenizer"
        )
    if not isinstance(texts, (list, tuple)) or not texts or not all(isinstance(text, Tensor) for text in texts):
        raise ArgumentError(f"texts={shown(texts)} is not allowed; it must be a list of the features of a text each")
    seeds = row_seeds(list(seeds) if isinstance(seeds, range) else seeds, len(texts))
    for text in texts:
        if text.ndim != 2 or text.shape[1] != large.config.text_dim or not 1 <= len(text) <= large.config.text_length:
            raise ArgumentError(
                f"texts has {list(text.shape)}; it must be [1 to {large.config.text_length}, {large.config.text_dim}]"
            )
    extent = (SIDE, SIDE) if extent is None else extent
    rows, device, guided = len(texts), large.device, scale > 1
    sampler, rng = TokenSampler([sampling] * rows, None, device), CounterRNG(seeds, device)
    whole = sizes[-1][0] * patch, sizes[-1][1] * patch
    latents = torch.zeros(rows, large.config.bits, *whole, device=device)
    model = _Model(large, texts, guided, sizes, extent)
    inputs, found, begin = list[Tensor](), list[Tensor](), 0
    for i, size in enumerate(sizes):
        if i == large_maps:
            assert small is not None
            model = _Model(small, texts, guided, sizes, extent)
        inputs.append(next_input(latents, size, patch))
        meter.clock.lap("other")
        z = model.logits(inputs, scale)[:, -size[0] * size[1] :]
        meter.clock.lap("target" if i < large_maps else "drafter")
        places, width = z.shape[1:3]
        # Every bit has a position of its own, and so its own random numbers.
        positions = np.tile(np.arange(begin, begin + places * width), (rows, 1))
        draws = rng.window(positions, 0)
        p = sampler(Logits(z.flatten(1, 2), None), draws.positions)
        bits = sampler.sample(p, draws).unflatten(1, (places, width))
        found.append(bits)
        begin += places * width
        latents = latents + F.interpolate(codes(bits, size, patch), size=whole, mode="bilinear")
        meter.clock.lap("rule")
        meter.tokens += places
        if i < large_maps:
            meter.target_calls += 1
            meter.calls += 1
    return found, latents
