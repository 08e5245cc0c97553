"""The decoding of VAR, map by map, with one model or with a large and a small one.

Collaborative decoding (CoDe; Chen et al. 2024, arXiv 2411.17787) lets the large model generate the first maps, which
have few tokens and decide what the image shows, and a small model the rest, which have nearly all tokens. The small
model reads the first maps in the pass of its first map. It follows the small model's distribution there, so that it is
relaxed; `map_distances` measures by how much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mmspec.decoding.stats import Meter
from mmspec.decoding.step import OnStep, Step
from mmspec.errors import ArgumentError
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.rng import CounterRNG
from mmspec.sampling.sampler import TokenSampler
from mmspec.vision.var.tokenizer import VARTokenizer
from mmspec.vision.var.transformer import LayerCache, VARTransformer


@dataclass(frozen=True)
class Cost:
    """What the decoding of one batch reads.

    Attributes:
        large_calls: Calls of the large model.
        small_calls: Calls of the small model.
        weight_bytes: Bytes of weights that all calls read.
        cache_bytes: Bytes of the KV caches at the end, per image.
    """

    large_calls: int
    small_calls: int
    weight_bytes: int
    cache_bytes: int


def cost_of(large: VARTransformer, small: VARTransformer | None, large_maps: int, guided: bool = True) -> Cost:
    """The cost of generating `large_maps` maps with the large model and the rest with the small one.

    Args:
        large: The large model.
        small: The small model; None if `large_maps` is the number of maps.
        large_maps: Maps of the large model.
        guided: Whether there are unconditional rows.
    """
    maps, rows = len(large.sides), 1 + guided

    def weights(model: VARTransformer) -> int:
        return sum(p.numel() * p.element_size() for p in model.parameters())

    def cache(model: VARTransformer, tokens: int) -> int:
        return 2 * model.config.depth * model.config.dim * tokens * rows * model.pos_1LC.element_size()

    own = cache(large, large.ends[large_maps - 1])
    if large_maps == maps or small is None:
        return Cost(maps, 0, maps * weights(large), own)
    rest = maps - large_maps
    total = large_maps * weights(large) + rest * weights(small)
    # The large model's cache is dropped when the small one takes over, which reads all maps.
    return Cost(large_maps, rest, total, max(own, cache(small, small.ends[-1])))


class _Model:
    """One model with its prompts and its cache.

    Args:
        model: The model.
        labels: int64 [B].
        guided: Whether to compute unconditional rows too.
    """

    def __init__(self, model: VARTransformer, labels: Tensor, guided: bool) -> None:
        self.model = model
        rows = len(labels)
        classes = [model.classes(labels.to(model.device), rows)]
        if guided:
            classes.append(model.classes(None, rows))
        self._condition, self._guided = torch.cat(classes), guided
        self._cache: list[LayerCache] = []
        self._read = 0

    def logits(self, inputs: Sequence[Tensor], scale: float) -> Tensor:
        """Logits float32 [B, n, V] of the maps that have not been read, with guidance by the place of each map.

        Args:
            inputs: The inputs of all maps up to the present one.
            scale: The guidance scale; that of map i is 1 + scale * i / (maps - 1).
        """
        factor = 1 + self._guided
        first, fresh = self._read, [content.repeat(factor, 1, 1) for content in inputs[self._read :]]
        z, self._cache = self.model(self._condition, fresh, first, self._cache)
        self._read = len(inputs)
        if not self._guided:
            return z
        sides = self.model.sides
        ratio = torch.arange(first, self._read, device=z.device) / max(len(sides) - 1, 1)
        counts = torch.tensor([side**2 for side in sides[first : self._read]], device=z.device)
        t = (scale * ratio).repeat_interleave(counts)[:, None]
        cond, uncond = z.chunk(2)
        return (1 + t) * cond - t * uncond


def decode_maps(
    large: VARTransformer,
    tokenizer: VARTokenizer,
    labels: Tensor,
    samplings: Sequence[SamplingParams],
    scale: float,
    seeds: Sequence[int],
    meter: Meter,
    small: VARTransformer | None = None,
    large_maps: int | None = None,
    on_step: OnStep | None = None,
) -> tuple[Tensor, int]:
    """Generates all maps.

    Args:
        large: The model.
        tokenizer: The tokenizer.
        labels: Classes int64 [B].
        samplings: Temperature, top-k and top-p of each row.
        scale: The guidance scale of the last map; 0 is off.
        seeds: One per row. A row's tokens depend on its own seed and class.
        meter: Counts calls, tokens and seconds.
        small: The model of the last maps; None for `large`.
        large_maps: The number of maps of `large`; None for all.
        on_step: Called after every call.

    Returns:
        Tokens int64 [B, L] of all maps, and the number of calls of the small model.

    Raises:
        ArgumentError: If `large_maps` is not in 1..maps, or there is no small model for the rest.
    """
    maps = len(large.sides)
    large_maps = maps if large_maps is None else large_maps
    if not 1 <= large_maps <= maps:
        raise ArgumentError(f"large_scales={large_maps} is not allowed; it must be from 1 to {maps}")
    if large_maps < maps and small is None:
        raise ArgumentError(f"large_scales={large_maps} requires a draft_transformer for the other {maps - large_maps}")
    sampler, rng = TokenSampler(samplings, None, large.device), CounterRNG(seeds, large.device)
    model = _Model(large, labels, scale != 0)
    image, tokens, inputs = tokenizer.empty(len(labels)), list[Tensor](), list[Tensor]()
    small_calls = 0
    for i, side in enumerate(large.sides):
        if i == large_maps:
            assert small is not None
            model = _Model(small, labels, scale != 0)
        inputs.append(tokenizer.input_of(i, image))
        meter.clock.lap("other")
        z = model.logits(inputs, scale)[:, -side * side :]
        meter.clock.lap("target" if i < large_maps else "drafter")
        positions = np.tile(np.arange(large.ends[i] - side * side, large.ends[i]), (len(labels), 1))
        p = sampler(Logits(z, None), positions)
        tokens.append(sampler.sample(p, rng.window(positions, 0)))
        image = image + tokenizer.added(i, tokens[-1])
        meter.clock.lap("rule")
        if i < large_maps:
            meter.nfe += 1
            meter.calls += 1
        small_calls += i >= large_maps
        meter.tokens += side * side
        if on_step is not None:
            so_far = torch.cat(tokens, dim=1)
            on_step(Step(meter.nfe + small_calls, so_far.numel(), len(labels) * large.ends[-1], list(so_far)))
    return torch.cat(tokens, dim=1), small_calls


def map_distances(
    large: VARTransformer,
    small: VARTransformer,
    tokenizer: VARTokenizer,
    labels: Tensor,
    samplings: Sequence[SamplingParams],
    scale: float,
    tokens: Tensor,
) -> Tensor:
    """The total variation between both models' distributions of every token, given the maps before it.

    Both read the whole sequence in one pass.

    Args:
        large: The large model.
        small: The small model.
        tokenizer: The tokenizer.
        labels: int64 [B].
        samplings: As in `decode_maps`.
        scale: As in `decode_maps`.
        tokens: int64 [B, L], generated maps.

    Returns:
        float32 [B, L]. Its mean over the maps of the small model, times their share of the tokens, bounds the average
        total variation per token of what CoDe emits.
    """
    image, inputs, first = tokenizer.empty(len(labels)), list[Tensor](), 0
    for i, side in enumerate(large.sides):
        inputs.append(tokenizer.input_of(i, image))
        image = image + tokenizer.added(i, tokens[:, first : first + side**2])
        first += side**2
    positions = np.tile(np.arange(first), (len(labels), 1))
    p, q = (
        TokenSampler(samplings, None, large.device)(
            Logits(_Model(model, labels, scale != 0).logits(inputs, scale), None), positions
        )
        for model in (large, small)
    )
    return (p - q).abs().sum(-1) / 2
