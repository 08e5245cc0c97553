"""A batch that is decoded frame by frame, the codes of each frame along the depth; rows join and leave it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmspec.audio.depth.depth_decoding import (
    DepthDecoding,
    FrameModel,
    FrameSpec,
    frame_numbers,
    refuse_entropy,
)
from mmspec.decoding.assembly import window_policy, with_window
from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.rows import select_rows
from mmspec.decoding.stats import Meter, Stats
from mmspec.decoding.step import UNWATCHED, OnStep, Step, Watch
from mmspec.decoding.target import cache_bytes
from mmspec.decoding.window_policy import WindowPolicy
from mmspec.decoding.windows import NOTHING
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe
from mmspec.sampling.numbers import Download, Numbers, upload
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.rejection import Verdict, sampled
from mmspec.sampling.rng import WindowRNG
from mmspec.sampling.sampler import TokenSampler


class FrameBatch:
    """A batch whose tokens are frames: a step is one call of the backbone, and one run of the loop along the depth.

    It is a `mmspec.batching.request.DecodingBatch`. The policy chooses the windows along the depth; all frames share
    it.

    Args:
        model: The model with its prompts given.
        draft: A smaller model with the same prompts, which drafts the depth, or None.
        recipe: How the tokens after the first are decoded.
        state: The batch, whose tokens are frames [1 + D].
        first: Sampling parameters of the first token of a frame, one per row.
        rest: Those of the other tokens, one per row.
        policy: Chooses the windows along the depth.
        meter: Counts calls, tokens and seconds. Every code is a token.
        on_step: Called after every frame; the tokens of its `Step` are frames.
    """

    ROWS = ("_model", "_draft", "_sampler", "_rest_sampler", "_rest", "state")
    COUNTS = ("draft_calls",)
    SAME = ("_is_drafted",)

    def __init__(
        self,
        model: FrameModel,
        draft: FrameModel | None,
        recipe: Recipe,
        state: BatchState,
        first: Sequence[SamplingParams],
        rest: Sequence[SamplingParams],
        policy: WindowPolicy,
        meter: Meter,
        on_step: OnStep | None = None,
    ) -> None:
        self.state, self.meter, self.draft_calls = state, meter, 0
        self._model, self._draft, self._recipe = model, draft, recipe
        self._is_drafted, self._rest = draft is not None, list(rest)
        self._sampler, self._rest_sampler = (TokenSampler(each, None, model.device) for each in (first, rest))
        self._policy, self._on_step = policy, on_step

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV cache, if the model knows."""
        return cache_bytes(self._model)

    def stats(self) -> Stats:
        """The statistics so far."""
        return self.meter.stats(self.draft_calls, self.state.truncated)

    def use(self, policy: WindowPolicy | None = None, most_steps: int | None = None) -> None:
        """Sets the policy of the next frames.

        Args:
            policy: The policy; None for the one so far.
            most_steps: Not used: a step is always one frame.
        """
        self._policy = policy or self._policy

    def start(self) -> bool:
        """Reads the prompts and generates the first frame of each row; returns whether any row is running."""
        return self._frame(None)

    def step(self) -> bool:
        """Generates one frame of each running row; returns whether any row is still running."""
        self.drop_finished()
        return self._frame(self.state.last()[:, 0])

    @property
    def parts(self) -> tuple[Any, ...]:
        return (self,)

    def drop_finished(self, at_once: bool = True) -> None:
        """Drops finished rows; the backbone's calls have no room for frames past the end of a row."""
        running, rows = self.state.running(), len(self.state.ids)
        if running and len(running) < rows:
            select_rows(self, running, rows)

    def _frame(self, before: Tensor | None) -> bool:
        """Generates a frame of each row, all of which are running, after the frames int64 [B, 1 + D] before them."""
        model, draft, state, meter = self._model, self._draft, self.state, self.meter
        # One copy to the device has all numbers of a frame.
        positions, iteration, numbers = upload(
            [
                state.positions(1),
                np.zeros((len(state.ids), 1), dtype=np.int64),
                frame_numbers(state.rng.seeds, state.length, 0 if before is None else model.codes),
            ],
            state.device,
        )
        meter.clock.lap("other")
        logits = model.start() if before is None else model.step(before)
        meter.clock.lap("target")
        if draft is not None:
            draft.start() if before is None else draft.step(before)
            self.draft_calls += 1
            meter.clock.lap("drafter")
        p, draws = self._sampler(logits, positions), WindowRNG(state.rng, positions, iteration)
        # The codes need the first token on the device alone: the host does not wait for it before they are launched.
        pending = self._sampler.sample_ahead(p, draws)
        first = self._sampler.sample(p, draws) if pending is None else pending.tokens.clamp(min=0)
        none = np.zeros(len(p), dtype=np.int64)
        meter.count(Verdict(first, Numbers(none), p, NOTHING), none + 1, state.ids)
        depth = DepthDecoding(
            model, draft, self._recipe, self._rest, self._rest_sampler, numbers, self._policy, state.length
        )
        codes, calls = depth.decode(first, None if before is None else before[:, 1:], meter, state.ids)
        self.draft_calls += calls
        frame = torch.cat([first if pending is None else pending.tokens, codes], dim=1)[:, None]
        # The host waits once, for the whole frame: it shows whether rows end, and whether all had a distribution.
        running = state.append(frame, sampled(Download(frame).wait().numpy()))
        if self._on_step is not None:
            step, size = state.step(meter.target_calls), state.layout.cell[0]
            self._on_step(Step(step.target_calls, int(meter.tokens.sum()), step.total * size, step.tokens))
        return bool(running)


@dataclass(frozen=True)
class PreparedFrames:
    """Rows that are ready to be decoded frame by frame; a `mmspec.batching.request.PreparedBatch`.

    Attributes:
        model: The model with its prompts given.
        spec: The frames to generate.
        resources: Holds the window controllers of earlier runs.
        draft: A smaller model with the same prompts, for recipes that use one.
        recipe: None: requests keep their recipes.
        tokens: None: a row's tokens are its frames.
    """

    model: FrameModel
    spec: FrameSpec
    resources: DraftResources
    draft: FrameModel | None = None
    recipe: Recipe | None = None
    tokens: Callable[[Tensor], Tensor] | None = None

    def batch(self, recipe: Recipe, seeds: Sequence[int], watch: Watch = UNWATCHED) -> FrameBatch:
        """The batch, before its first frame.

        Raises:
            ArgumentError: For a recipe with trees, and if entropies are asked for.
        """
        refuse_entropy(watch)
        if recipe.info.tree:
            raise ArgumentError(f"recipe {recipe.name!r} is not possible here: a depth decoder reads windows only")
        model, spec, count = self.model, self.spec, len(seeds)
        ends = spec.ends

        def ended(frames: Tensor) -> Tensor:
            assert ends is not None
            return ends(frames.flatten(0, 1)).view(frames.shape[:2])

        size = 1 + model.codes
        layout = Layout(spec.length, pad=spec.pad, cell=(size,), ends=None if ends is None else ended)
        state = BatchState(seeds, layout, 1, model.device)
        tokens = spec.length * model.codes
        recipe = with_window(recipe, model)
        policy = window_policy(recipe, [spec.rest] * count, count, self.resources, tokens)
        draft = self.draft if recipe.needs_draft_model else None
        meter = Meter(model.device, count, window=recipe.window)
        first, rest = [spec.first] * count, [spec.rest] * count
        return FrameBatch(model, draft, recipe, state, first, rest, policy, meter, watch.on_step)
