"""The steps of aMUSEd (arXiv 2401.01808), as the scheduler of diffusers takes them.

In each step every masked place samples a token, and the least confident ones are masked again: their number follows a
cosine or linear schedule, and the confidence is log p plus Gumbel noise times a temperature that falls over the steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmspec.masked.keeping import Keeper, Sampled
from mmspec.masked.loop import Ints
from mmspec.sampling.rng import CounterRNG
from mmspec.vision.amused.cached import StepCache

_INIT = 3  # of the uniform numbers at a place, the stream that noise of the confidence is made of


@dataclass(frozen=True)
class Unmasking:
    """Which places keep their tokens in each step.

    Attributes:
        mask_id: The token of masked places.
        steps: The number of steps, S.
        cosine: Whether the schedule is a cosine, or linear.
        first_temperature: Factor of the confidence's noise in the first step.
        last_temperature: The one in the last step.
        confidence: A token with a probability above this is kept beyond the schedule; 1 keeps the schedule.
    """

    mask_id: int
    steps: int
    cosine: bool = True
    first_temperature: float = 2.0
    last_temperature: float = 0.0
    confidence: float = 1.0

    def masked(self, steps: Ints, places: int, missing: Tensor) -> Tensor:
        """The number of places to mask after each step, int64 [R]; `missing` int64 [R] are masked before it."""
        ratio = torch.from_numpy(steps + 1) / self.steps
        share = torch.cos(ratio * math.pi / 2) if self.cosine else 1 - ratio
        wanted = (places * share).floor().long().to(missing.device)
        # At least one place is filled and one is left, but for the last step.
        return torch.minimum(missing - 1, wanted).clamp(min=1)

    def after(
        self, states: Tensor, tokens: Tensor, p: Tensor, noise: Tensor, steps: Ints, kept: Tensor | None = None
    ) -> Tensor:
        """The next states int64 [R, N].

        Args:
            states: int64 [R, N].
            tokens: int64 [R, N], a sample at each place.
            p: float32 [R, N], their probabilities.
            noise: float32 [R, N], Gumbel noise.
            steps: Host int64 [R].
            kept: bool [R, N], places whose tokens stay in any case.
        """
        missing = states == self.mask_id
        tokens = torch.where(missing, tokens, states)
        ramp = torch.linspace(self.first_temperature, self.last_temperature, self.steps)
        temperatures = ramp[torch.from_numpy(steps)].to(p.device)[:, None]
        chance = torch.where(missing, p, torch.finfo(p.dtype).max)
        confidence = chance.clamp(1e-20).log() + temperatures * noise
        count = self.masked(steps, states.shape[1], missing.sum(1))
        masked = confidence < confidence.sort(dim=1).values.gather(1, count[:, None])
        masked &= ~(p > self.confidence)
        if kept is not None:
            masked &= ~kept
        last = torch.from_numpy(steps == self.steps - 1).to(p.device)
        return torch.where(masked & ~last[:, None], self.mask_id, tokens)


class AmusedProcess:
    """A batch of prompts for `mmspec.masked.loop.MaskedBatch`.

    Args:
        model: A `UVit2DModel` of diffusers.
        pooled: float [B, C], the pooled embeddings of the prompts; [2 B, C] with guidance, negative prompts last.
        hidden: float [B or 2 B, T, C], the hidden states of the prompts.
        micro: float [5], width, height, crop coordinates and aesthetic score.
        grid: Rows and columns of the tokens.
        unmasking: The schedule.
        seeds: One per row.
        keep: Decides which tokens stay beyond the schedule; None keeps the schedule.
        refresh: Steps after which all places are computed anew; above 1, see `mmspec.vision.amused.cached`.
    """

    def __init__(
        self,
        model: Any,
        pooled: Tensor,
        hidden: Tensor,
        micro: Tensor,
        guidance_scale: float,
        grid: tuple[int, int],
        unmasking: Unmasking,
        seeds: Sequence[int],
        keep: Keeper | None = None,
        refresh: int = 1,
    ) -> None:
        self.steps = unmasking.steps
        self._model, self._pooled, self._hidden, self._micro = model, pooled, hidden, micro
        self._scale, self._grid, self._unmasking = guidance_scale, grid, unmasking
        self._seeds = list(seeds)
        self._guided = len(pooled) > len(seeds)
        self._keep = None if keep is None else keep.start(len(seeds))
        self.cache = StepCache(model, len(pooled), refresh) if refresh > 1 else None

    def start(self) -> Tensor:
        shape = len(self._seeds), self._grid[0] * self._grid[1]
        return torch.full(shape, self._unmasking.mask_id, device=self._model.device)

    def missing(self, states: Tensor) -> Tensor:
        return states == self._unmasking.mask_id

    def logits(self, rows: Ints, states: Tensor, steps: Ints) -> Tensor:
        index = torch.from_numpy(rows).to(states.device)
        if self._guided:
            index = torch.cat([index, index + len(self._seeds)])
        tokens, micro = (
            states.unflatten(1, self._grid).repeat(1 + self._guided, 1, 1),
            self._micro.expand(len(index), -1),
        )
        if self.cache is not None:
            # Without drafts all rows that still run are at the same step.
            missing = self.missing(states).repeat(1 + self._guided, 1)
            conditions = self._hidden[index], self._pooled[index], micro
            out = self.cache.logits(index, int(steps[0]), tokens, missing, *conditions)
        else:
            out = self._model(
                tokens,
                encoder_hidden_states=self._hidden[index],
                pooled_text_emb=self._pooled[index],
                micro_conds=micro,
            )
        z: Tensor = out.float().flatten(2).transpose(1, 2)
        if not self._guided:
            return z
        cond, uncond = z.chunk(2)
        return uncond + self._scale * (cond - uncond)

    def advance(self, rows: Ints, states: Tensor, logits: Tensor, steps: Ints) -> Tensor:
        p = logits.softmax(-1)
        tokens, noise = self.noise(rows, steps, logits.shape[1:])
        sampled = (p.log() + tokens.to(p)).argmax(-1)
        chance = p.gather(-1, sampled[..., None])[..., 0]
        kept = None
        if self._keep is not None:
            kept = self._keep.keep(Sampled(rows, steps, self.missing(states), sampled, p, self._grid))
        return self._unmasking.after(states, sampled, chance, noise.to(p), steps, kept)

    def noise(self, rows: Ints, steps: Ints, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Gumbel noise of tokens float32 [R, N, V] and of the confidence [R, N], by row, step and place."""
        places, vocab = shape
        rng = CounterRNG([self._seeds[row] for row in rows], torch.device("cpu"))
        positions = steps[:, None] * places + np.arange(places)
        uniform = rng.uniforms(positions, 0)[_INIT]
        return rng.gumbel(positions, vocab), -(-uniform.clamp(1e-20).log()).clamp(1e-20).log()
