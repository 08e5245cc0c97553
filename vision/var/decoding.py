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

from mmspec.decoding.closed_batch import ClosedBatch
from mmspec.decoding.layout import Layout
from mmspec.decoding.step import UNWATCHED, Watch
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
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
        """Logits float32 [B, n, V] of the maps not read yet; guidance of map i is 1 + scale * i / (maps - 1)."""
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


@dataclass(frozen=True)
class MapSettings:
    """Which model generates which maps.

    Attributes:
        scale: The guidance scale of the last map; 0 is off.
        large_maps: The number of maps of the large model.
        measures_distance: Whether both models read the result once more, for `Stats.tv_bound`.
    """

    scale: float
    large_maps: int
    measures_distance: bool = False


class MapBatch(ClosedBatch):
    """Rows that are decoded map by map.

    Args:
        large: The model.
        small: The model of the last maps; None if `large` generates all.
        labels: Classes int64 [B].
        samplings: Temperature, top-k and top-p of each row.
        settings: Which model generates which maps.
        seeds: One per row. A row's tokens depend on its own seed and class.
        watch: What to show; the calls of a `Step` are those of both models.
    """

    def __init__(
        self,
        large: VARTransformer,
        small: VARTransformer | None,
        tokenizer: VARTokenizer,
        labels: Tensor,
        samplings: Sequence[SamplingParams],
        settings: MapSettings,
        seeds: Sequence[int],
        watch: Watch = UNWATCHED,
    ) -> None:
        super().__init__(seeds, Layout(large.ends[-1]), large.device, watch)
        self._large, self._small, self._tokenizer = large, small, tokenizer
        self._labels, self._samplings, self._settings = labels, samplings, settings
        self._sampler = TokenSampler(samplings, None, large.device)
        self._model = _Model(large, labels, settings.scale != 0)
        self._image, self._inputs = tokenizer.empty(len(labels)), list[Tensor]()
        self.cache_bytes = cost_of(large, small, settings.large_maps, settings.scale != 0).cache_bytes * len(labels)

    def step(self) -> bool:
        """Generates a map of each row; returns whether any row is running."""
        large, meter, state, i = self._large, self.meter, self.state, len(self._inputs)
        own, size = i < self._settings.large_maps, large.sides[i] ** 2
        if i == self._settings.large_maps:
            assert self._small is not None
            self._model = _Model(self._small, self._labels, self._settings.scale != 0)
        self._inputs.append(self._tokenizer.input_of(i, self._image))
        meter.clock.lap("other")
        z = self._model.logits(self._inputs, self._settings.scale)[:, -size:]
        meter.clock.lap("target" if own else "drafter")
        positions = np.tile(np.arange(large.ends[i] - size, large.ends[i]), (len(z), 1))
        draws = state.rng.window(positions, 0)
        tokens = self._sampler.sample(self._sampler(Logits(z, None), draws.positions), draws)
        self._image = self._image + self._tokenizer.added(i, tokens)
        meter.clock.lap("rule")
        gained = state.commit(tokens, np.full(len(z), size - 1))
        meter.target_calls += own
        meter.calls += own * (gained > 0)
        self.draft_calls += not own
        meter.tokens += gained
        if self.draft_calls and i + 1 == len(large.sides):
            self._measure()
        if self._on_step is not None:
            self._on_step(state.step(meter.target_calls + self.draft_calls))
        return bool(state.is_running.any())

    def _measure(self) -> None:
        """Measures how far the small model's maps are from the large model's distribution; NaN is unknown."""
        self.meter.excess += np.nan
        if self._settings.measures_distance:
            assert self._small is not None
            apart = map_distances(
                self._large, self._small, self._tokenizer, self._labels, self._samplings, self._settings.scale,
                self.state.result(),
            )  # fmt: skip
            first = self._large.ends[self._settings.large_maps - 1]
            self.meter.excess = apart[:, first:].sum(1).double().cpu().numpy()


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
        labels: int64 [B].
        samplings: As of `MapBatch`.
        scale: As of `MapSettings`.
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
        TokenSampler(samplings, None, large.device).probs(
            Logits(_Model(model, labels, scale != 0).logits(inputs, scale), None), positions
        )
        for model in (large, small)
    )
    return (p - q).abs().sum(-1) / 2
