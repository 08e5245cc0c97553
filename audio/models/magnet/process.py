"""The steps of MAGNeT (arXiv 2401.04577): one codebook after the other, each in its own number of steps.

A step samples a code at every masked place of its codebook. Then the spans that it was least sure of are masked again,
fewer and fewer; a span is scored by its most likely code, before top-k and top-p. The guidance scale and the
temperature fall over the steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mmspec.audio.models.magnet.model import MagnetTransformer
from mmspec.masked.loop import Ints
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.rng import CounterRNG
from mmspec.sampling.sampler import keep_top_k
from mmspec.sampling.truncation import keep_top_p

KEPT = -1e4  # the score of spans that are not masked again
LAST_GUIDANCE = 1.0  # the published default


@dataclass(frozen=True)
class SpanSchedule:
    """Which codebook a step fills, and how much of it.

    Attributes:
        steps: Steps of each codebook.
        spans: Spans of a codebook.
        first_guidance: Guidance scale of the first step of each codebook.
        last_guidance: Guidance scale where nothing is masked.
    """

    steps: tuple[int, ...]
    spans: int
    first_guidance: float
    last_guidance: float = LAST_GUIDANCE

    def stage(self, steps: Ints) -> Ints:
        """The codebook of each step, host int64 [R]."""
        return np.searchsorted(np.cumsum(self.steps), steps, side="right")

    def inside(self, steps: Ints) -> tuple[Ints, Ints]:
        """The number of each step in its codebook, and the steps of that codebook; host int64 [R]."""
        stage = self.stage(steps)
        counts = np.asarray(self.steps)
        return steps - (np.cumsum(counts) - counts)[stage], counts[stage]

    def masked_share(self, steps: Ints) -> Tensor:
        """The share of a codebook that is masked in each step, float32 [R]."""
        index, counts = self.inside(steps)
        times = [torch.linspace(0, 1, count)[i] for i, count in zip(index, counts, strict=True)]
        return torch.cos(torch.stack(times) * math.pi * 0.5)

    def masked(self, steps: Ints) -> Tensor:
        """The spans that are masked in each step, int64 [R]."""
        return (self.masked_share(steps) * self.spans).long().clamp(min=1)

    def guidance(self, steps: Ints) -> Tensor:
        """The guidance scale of each step, float32 [R]."""
        share = self.masked_share(steps)
        return share * self.first_guidance + (1 - share) * self.last_guidance

    def remaining(self, steps: Ints) -> Tensor:
        """The share of a codebook's steps that follow each step, float32 [R], the factor of the temperature."""
        index, counts = self.inside(steps)
        return torch.from_numpy((counts - 1 - index) / counts).float()


class MagnetProcess:
    """A batch of texts for `mmspec.masked.loop.MaskedBatch`; the places of a state are K codebooks of T frames.

    Args:
        text: [B, S, D], see `MagnetTransformer.read_text`.
        text_mask: bool [B, S].
        sampling: Temperature of the first step of each codebook, top-k and top-p. Temperature 0 takes the most likely
            codes.
        seeds: One per row.
    """

    def __init__(
        self,
        model: MagnetTransformer,
        text: Tensor,
        text_mask: Tensor,
        schedule: SpanSchedule,
        sampling: SamplingParams,
        seeds: Sequence[int],
    ) -> None:
        self.steps = sum(schedule.steps)
        self._model, self._schedule, self._sampling, self._seeds = model, schedule, sampling, list(seeds)
        # Without a text, the original reads zeros.
        self._text = torch.cat([text, torch.zeros_like(text)])
        self._text_mask = torch.cat([text_mask, torch.ones_like(text_mask)])
        self._books, self._frames = model.config.codebooks, schedule.spans * model.config.span

    def start(self) -> Tensor:
        shape = len(self._seeds), self._books * self._frames
        return torch.full(shape, self._model.config.codes, device=self._model.device)

    def missing(self, states: Tensor) -> Tensor:
        return states == self._model.config.codes

    def logits(self, rows: Ints, states: Tensor, steps: Ints) -> Tensor:
        index = torch.from_numpy(rows).to(states.device)
        index = torch.cat([index, index + len(self._seeds)])
        codes = states.unflatten(1, (self._books, self._frames)).repeat(2, 1, 1)
        stages = torch.from_numpy(self._schedule.stage(steps)).to(states.device).repeat(2)
        out = self._model(codes, self._text[index], self._text_mask[index], stages)
        cond, uncond = out.flatten(1, 2).chunk(2)
        scale = self._schedule.guidance(steps).to(out.device)[:, None, None]
        return uncond + (cond - uncond) * scale

    def advance(self, rows: Ints, states: Tensor, logits: Tensor, steps: Ints) -> Tensor:
        device, span = states.device, self._model.config.span
        stage = torch.from_numpy(self._schedule.stage(steps)).to(device)
        row = torch.arange(len(rows), device=device)
        books = states.unflatten(1, (self._books, self._frames)).clone()
        codes, logits = books[row, stage], logits.unflatten(1, (self._books, self._frames))[row, stage]
        sampled, chance = self._sample(rows, logits, steps)
        missing = codes == self._model.config.codes
        codes = torch.where(missing, sampled, codes)
        scores = 1 - chance.unflatten(1, (-1, span)).amax(-1)
        scores = scores.masked_fill(~missing.unflatten(1, (-1, span))[..., 0], KEPT)
        # Masked again for the next step, unless it begins another codebook.
        index, counts = self._schedule.inside(steps)
        following = np.minimum(steps + 1, self.steps - 1)
        count = self._schedule.masked(following).to(device)
        count = count.masked_fill(torch.from_numpy(index + 1 == counts).to(device), 0)
        rank = scores.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        again = (rank < count[:, None]).repeat_interleave(span, dim=1)
        books[row, stage] = codes.masked_fill(again, self._model.config.codes)
        return books.flatten(1)

    def _sample(self, rows: Ints, logits: Tensor, steps: Ints) -> tuple[Tensor, Tensor]:
        """Codes int64 [R, T] and the probabilities [R, T] by which spans are scored, from logits [R, T, V]."""
        sampling = self._sampling
        factor = self._schedule.remaining(steps).to(logits.device)
        p = (logits / (sampling.temperature * factor).clamp(min=1e-2)[:, None, None]).softmax(-1)
        if not sampling.temperature:
            sampled = logits.argmax(-1)
            return sampled, p.gather(-1, sampled[..., None])[..., 0]
        kept = p
        if sampling.top_p < 1:
            kept = keep_top_p(p, torch.tensor(sampling.top_p, device=p.device).expand(len(p), 1, 1))
        if sampling.top_k:
            k = torch.full((len(p), 1, 1), sampling.top_k, device=p.device)
            kept = keep_top_k(kept.log(), k, sampling.top_k).softmax(-1)
        sampled = (kept.log() + self.noise(rows, steps, p.shape[1:]).to(p)).argmax(-1)
        return sampled, p.gather(-1, sampled[..., None])[..., 0]

    def noise(self, rows: Ints, steps: Ints, shape: Sequence[int]) -> Tensor:
        """Gumbel noise float32 [R, T, V] by row, step and frame."""
        frames, codes = shape
        rng = CounterRNG([self._seeds[row] for row in rows], torch.device("cpu"))
        return rng.gumbel(steps[:, None] * frames + np.arange(frames), codes)
