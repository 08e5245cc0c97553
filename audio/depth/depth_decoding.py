"""Frames with a depth decoder: a backbone for every frame, in it a small model for one codebook after the other.

CSM and Moshi are built so. The backbone gives a distribution for the first token of a frame; the depth decoder goes on from that
token and the backbone's hidden state. Speculation runs along the depth: the loop is nested, one run of it per frame,
and exact for the same reasons. The backbone is called once per frame whatever is drafted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.adaptive_window import AdaptiveWindows
from mmspec.decoding.batch import BatchState, Step
from mmspec.decoding.layout import Layout
from mmspec.decoding.loop import OnStep, WindowPolicy
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.stats import Meter, Stats
from mmspec.decoding.target import Target
from mmspec.engine import build_rule, run_rows, window_policy
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.rng import CounterRNG
from mmspec.sampling.sampler import TokenSampler


class FrameModel(Protocol):
    """A model with its prompts given, decoding a batch of rows frame by frame.

    Attributes:
        codes: Tokens of a frame after its first, D.
    """

    codes: int
    device: torch.device

    def start(self) -> Logits:
        """Reads the prompts; the logits of the first token of frame 0, [B, 1, V]."""
        ...

    def step(self, frame: Tensor) -> Logits:
        """Reads a frame int64 [B, 1 + D]; the logits of the first token of the next, [B, 1, V]."""
        ...

    def depth(self, first: Tensor, start: int, window: int) -> Target:
        """The rest of the frame whose first token, int64 [B, 1], is this, as D positions from `start` on."""
        ...

    def select_rows(self, row_ids: list[int]) -> None:
        """Drops all rows but these."""
        ...


@dataclass(frozen=True)
class Frames:
    """What is to be made.

    Attributes:
        length: Frames at most.
        ends: Tells from frames int64 [B, 1 + D] which end their row, bool [B].
        pad: What fills the frames after the end.
        first: How the first token of a frame is drawn, in every row alike.
        rest: How the others of a frame are drawn, in every row alike.
    """

    length: int
    ends: Callable[[Tensor], Tensor] | None
    pad: int
    first: SamplingParams
    rest: SamplingParams


@dataclass(frozen=True)
class DecodedFrames:
    """Frames int64 [B, T, 1 + D], as many as the longest row has, and what they cost."""

    frames: Tensor
    stats: Stats


def decode_frames(
    model: FrameModel,
    recipe: Recipe,
    frames: Frames,
    seeds: Sequence[int],
    draft: FrameModel | None = None,
    on_step: OnStep | None = None,
    adaptive_windows: AdaptiveWindows | None = None,
) -> DecodedFrames:
    """Decodes a batch of rows.

    Args:
        model: With its prompts.
        recipe: How the tokens after the first are decoded; the guess "above" is the same codebook one frame ago.
        frames: The frames to generate.
        seeds: One per row. A row's frames depend on its own seed and prompt alone.
        draft: A smaller model with the same prompts, for recipes that use one; it drafts the depth.
        on_step: Called after every frame; its `Step` holds frames where others hold tokens.
        adaptive_windows: Window controllers of earlier runs of the model, for `window=auto`; the depth of every frame
            shares one.

    Raises:
        ArgumentError: For a recipe with trees.
    """
    if recipe.info.tree:
        raise ArgumentError(f"recipe {recipe.name!r} is not possible here: a depth decoder reads windows only")
    count, device, rng = len(seeds), model.device, CounterRNG(seeds, model.device)
    made = torch.full((count, frames.length, 1 + model.codes), frames.pad, dtype=torch.int64, device=device)
    lengths, ids, meter = np.zeros(count, dtype=np.int64), np.arange(count), Meter(device, count)
    sampler = TokenSampler([frames.first] * count, None, device)
    draft_calls, frame = 0, made[:, 0]
    draft = draft if recipe.needs_draft_model else None
    resources = DraftResources(adaptive_windows={} if adaptive_windows is None else adaptive_windows)
    settings = [frames.rest] * count
    policy = window_policy(recipe, settings, count, resources, frames.length * model.codes)
    with torch.inference_mode():
        for t in range(frames.length):
            meter.clock.lap("other")
            logits = model.step(frame) if t else model.start()
            meter.clock.lap("target")
            if draft is not None:
                draft.step(frame) if t else draft.start()
                draft_calls += 1
                meter.clock.lap("drafter")
            here = np.full((len(ids), 1), t)
            p = sampler(logits, here)
            first = sampler.sample(p, rng.window(here, 0))
            meter.count_plain(p, first, ids)
            depth = Depth(model, draft, recipe, frames.rest, [mixed(seeds[i], t) for i in ids.tolist()], policy)
            codes, calls = depth.decode(first, frame[:, 1:] if t else None, meter, ids)
            draft_calls += calls
            frame = torch.cat([first, codes], dim=1)
            made[torch.from_numpy(ids).to(device), t] = frame
            lengths[ids] += 1
            if on_step is not None:
                so_far = [row[:n].clone() for row, n in zip(made, lengths, strict=True)]
                on_step(Step(meter.nfe, int(meter.tokens.sum()), made[..., 0].numel() * (1 + model.codes), so_far))
            if frames.ends is None:
                continue
            running = np.flatnonzero(~frames.ends(frame).cpu().numpy()).tolist()
            if not running:
                break
            if len(running) < len(ids):
                ids, frame = ids[running], frame[running]
                rng.select_rows(running)
                sampler.select_rows(torch.tensor(running, device=device))
                for one in (model, draft):
                    if one is not None:
                        one.select_rows(running)
    meter.clock.lap("other")
    return DecodedFrames(made[:, : lengths.max()], meter.stats(draft_calls))


@dataclass(frozen=True)
class Depth:
    """The tokens of one frame after its first, in all rows."""

    model: FrameModel
    draft: FrameModel | None
    recipe: Recipe
    sampling: SamplingParams
    seeds: Sequence[int]
    policy: WindowPolicy

    def decode(self, first: Tensor, before: Tensor | None, meter: Meter, ids: NDArray[np.int64]) -> tuple[Tensor, int]:
        """Int64 [B, D], and how often a draft model was called.

        Args:
            first: int64 [B, 1].
            before: Those tokens of the frame before, int64 [B, D], or None.
            meter: Counts; the rows are number `ids` of it.
        """
        recipe, device, depth, count = self.recipe, self.model.device, self.model.codes, len(first)
        start = 0 if before is None else depth
        layout = Layout(start + depth, width=depth)
        target = self.model.depth(first, start, recipe.window)
        samplings, resources = [self.sampling] * count, DraftResources()
        if (draft := self.draft) is not None:
            resources = DraftResources(
                draft_model=lambda: draft.depth(first, start, recipe.window), draft_sampling=samplings
            )
        state = BatchState(self.seeds, layout, recipe.window, device)
        if before is not None:
            state.commit(before, np.full(count, depth - 1))
        part = Meter(device, count)
        part.clock = meter.clock
        sampler, rule = TokenSampler(samplings, None, device), build_rule(recipe, resources)
        calls = run_rows(target, recipe, rule, sampler, state, samplings, resources, self.policy, part, None)
        add(meter, part, ids)
        return state.result()[:, start:], calls


def add(meter: Meter, part: Meter, ids: NDArray[np.int64]) -> None:
    """Adds what a part of the run counted, whose rows are number `ids` of the whole."""
    meter.nfe += part.nfe
    for name in ("calls", "tokens", "excess", "bits", "surprise"):
        getattr(meter, name)[ids] += getattr(part, name)
    longest = max(len(meter.tested), len(part.tested))
    for name in ("accepted", "tested"):
        ours, theirs = getattr(meter, name), getattr(part, name)
        setattr(meter, name, np.pad(ours, (0, longest - len(ours))) + np.pad(theirs, (0, longest - len(theirs))))


def mixed(seed: int, frame: int) -> int:
    """The seed of a row's depth at a frame: SplitMix64 (Steele et al. 2014) of both.

    Were it the row's own, positions of one frame would share their random numbers with those of the next.
    """
    x = (seed + (frame + 1) * 0x9E3779B97F4A7C15) % 2**64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> shift)) * factor % 2**64
    return x ^ (x >> 31)
