"""Decoding along the depth: a backbone generates frames, and a small model the codebooks of each frame in turn.

CSM and Moshi are of this kind. The backbone predicts the first token of a frame; the depth decoder generates the other
tokens from it and from the backbone's hidden state. Speculative decoding runs along the depth: one run of the decoding
loop per frame, exact for the same reasons. See `mmspec.audio.depth.frame_batch` for the loop over the frames.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mmspec.audio.depth.captured_depth import CapturedDepth
from mmspec.decoding.assembly import build_rule, running_batch
from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.stats import Meter, Stats
from mmspec.decoding.step import Watch
from mmspec.decoding.target import Target
from mmspec.decoding.to_end import step_to_end
from mmspec.decoding.window_policy import Committed, WindowPolicy
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe
from mmspec.sampling.constraints import Constraint
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Download, Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import TokenSampler


class CodesModel(Protocol):
    """A model whose frames have codes along a depth.

    Attributes:
        codes: D, tokens of a frame after the first.
        device: Where its tensors are.
    """

    codes: int
    device: torch.device

    @property
    def reader(self) -> nn.Module:
        """What reads the windows: the depth decoder alone, without the backbone."""
        ...

    def depth(self, first: Tensor, start: int, window: int) -> Target:
        """The depth decoder as a target of the codes of the current frame.

        Args:
            first: int64 [B, 1], the first token of the frame.
            start: Position of the first of its D codes.
            window: How far a window may reach past the end.
        """
        ...


class FrameModel(CodesModel, Protocol):
    """A model with its prompts given that decodes a batch of rows frame by frame; a part of the batch."""

    def start(self) -> Logits:
        """Reads the prompts and returns the logits of the first token of frame 0, [B, 1, V]."""
        ...

    def step(self, frame: Tensor) -> Logits:
        """Reads a frame int64 [B, 1 + D] and returns the logits of the first token of the next one, [B, 1, V]."""
        ...


@runtime_checkable
class GivesCodes(Protocol):
    """A model with codes that are given: those of a voice, or of codebooks whose delay is not over."""

    def given_codes(self, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """The given codes of frames, host int64 [B, n, D], -1 for those that are generated.

        Args:
            frames: Host int64 [B, n], the numbers of frames.
        """
        ...


def given_constraint(given: NDArray[np.int64], vocab_size: int, device: torch.device) -> Constraint:
    """The constraint of rows some of whose tokens are given, so that drafts have them too.

    What lies past the end of a row, where windows may reach, is free.

    Args:
        given: Host int64 [B, ...], the tokens of each row in order; -1 where one is free.
        vocab_size: V.
        device: Of the constraint.
    """
    rows = given.reshape(len(given), -1)
    ids, kind = np.unique(np.pad(rows, ((0, 0), (0, 1)), constant_values=-1), return_inverse=True)
    allowed = (ids[:, None] == np.arange(vocab_size)) | (ids[:, None] < 0)
    return Constraint(torch.from_numpy(kind.reshape(len(rows), -1)).to(device), torch.from_numpy(allowed).to(device))


@dataclass(frozen=True)
class FrameSpec:
    """The frames to generate.

    Attributes:
        length: Frames per row, at most.
        ends: Maps frames int64 [B, 1 + D] to bool [B], True for a frame that ends its row; None if rows never end.
        pad: The token of frames after the end.
        first: Sampling parameters of the first token of a frame, in all rows of a batch when it starts.
        rest: Those of the other tokens.
    """

    length: int
    ends: Callable[[Tensor], Tensor] | None
    pad: int
    first: SamplingParams
    rest: SamplingParams


def refuse_entropy(watch: Watch) -> None:
    """Refuses to measure entropies.

    Raises:
        ArgumentError: If they are asked for.
    """
    if watch.measure_entropy:
        raise ArgumentError("measure_entropy is not possible here: the tokens of a frame come from two models")


@dataclass(frozen=True)
class DecodedFrames:
    """Generated frames.

    Attributes:
        frames: int64 [B, T, 1 + D], up to the end of the longest row.
        stats: Statistics of the run.
    """

    frames: Tensor
    stats: Stats


@dataclass(frozen=True)
class DepthDecoding:
    """Decoding of the codes of one frame, in all rows.

    Attributes:
        model: The model, which has read the frames before.
        draft: A draft model, which has read them too, or None.
        recipe: How the codes are decoded.
        samplings: Sampling parameters of the codes, one per row.
        sampler: A sampler with these.
        numbers: [B, 2], the seed of each row, see `frame_seed`, and the position of its first code.
        policy: Chooses the window.
        frames: Host int64 [B], the number of the frame in each row.
    """

    model: CodesModel
    draft: CodesModel | None
    recipe: Recipe
    samplings: Sequence[SamplingParams]
    sampler: TokenSampler
    numbers: Numbers
    policy: WindowPolicy
    frames: NDArray[np.int64]

    def decode(self, first: Tensor, before: Tensor | None, meter: Meter, ids: NDArray[np.int64]) -> tuple[Tensor, int]:
        """The codes int64 [B, D] of the frame, and the number of calls of the draft model.

        A code is -1 where it has no distribution, and a graph has sampled the frame without waiting for the host.

        Args:
            first: The first token of the frame, int64 [B, 1].
            before: The codes of the previous frame, int64 [B, D], or None.
            meter: The meter of the whole run.
            ids: Host int64 [B], the number of each row in `meter`.
        """
        recipe, device, depth, count = self.recipe, self.model.device, self.model.codes, len(first)
        start = int(self.numbers.host[0, 1])
        target, constraint = self.model.depth(first, start, recipe.window), None
        if isinstance(self.model, GivesCodes):
            given = self.model.given_codes(self.frames[:, None])[:, 0]
            if (given >= 0).any():
                padded = np.pad(given, ((0, 0), (start, 0)), constant_values=-1)
                constraint = given_constraint(padded, target.vocab_size, device)
        if constraint is None and isinstance(target, CapturedDepth) and self.policy.choose() == 1:
            codes = self._plain(target, first, meter, ids)
            if codes is not None:
                return codes, 0
        layout = Layout(start + depth, width=depth, constraint=constraint)
        samplings, resources = self.samplings, DraftResources()
        if (draft := self.draft) is not None:
            resources = DraftResources(
                draft_model=lambda: draft.depth(first, start, recipe.window), draft_sampling=samplings
            )
        state = BatchState(self.numbers.host[:, 0].tolist(), layout, recipe.window, device)
        if before is not None:
            state.commit(before, np.full(count, depth - 1))
        part = Meter(device, count)
        part.clock = meter.clock
        sampler, rule = self.sampler.with_constraint(constraint), build_rule(recipe, resources)
        batch = running_batch(target, recipe, rule, sampler, state, samplings, resources, self.policy, part)
        step_to_end(batch)
        add_counts(meter, part, ids)
        return state.result()[:, start:], batch.draft_calls

    def _plain(self, target: CapturedDepth, first: Tensor, meter: Meter, ids: NDArray[np.int64]) -> Tensor | None:
        """The codes without drafts, sampled by one graph; None if they must be sampled one by one."""
        # A policy that compares plain steps with windows is told their time: then the host waits before and after.
        count, begun = self.model.codes, 0.0
        if self.recipe.auto:
            Download(first).wait()
            begun = time.perf_counter()
        codes = target.frame(self.numbers, count, self.sampler)
        if codes is None:
            return None
        meter.count_steps(count, ids)
        meter.clock.lap("target")
        if self.recipe.auto:
            Download(codes).wait()
            gained = np.full(len(first), count, dtype=np.int64)
            self.policy.record(1, Committed(gained, count, (time.perf_counter() - begun) / count, count))
        return codes


def add_counts(meter: Meter, part: Meter, ids: NDArray[np.int64]) -> None:
    """Adds the counts of a part of the run, whose rows are number `ids` of the whole run."""
    meter.target_calls += part.target_calls
    for name in ("calls", "tokens", "excess", "bits", "surprise"):
        getattr(meter, name)[ids] += getattr(part, name)
    longest = max(len(meter.tested), len(part.tested))
    for name in ("accepted", "tested"):
        ours, theirs = getattr(meter, name), getattr(part, name)
        setattr(meter, name, np.pad(ours, (0, longest - len(ours))) + np.pad(theirs, (0, longest - len(theirs))))


def frame_numbers(seeds: NDArray[np.int64], frames: NDArray[np.int64], start: int) -> NDArray[np.int64]:
    """The numbers of a `DepthDecoding`.

    Args:
        seeds: Host int64 [B], the seeds of the rows.
        frames: Host int64 [B], the number of the frame in each row.
        start: The position of the first code.
    """
    own = [frame_seed(seed, frame) for seed, frame in zip(seeds.tolist(), frames.tolist(), strict=True)]
    return np.stack([np.array(own, dtype=np.uint64).view(np.int64), np.full(len(own), start)], axis=1)


def frame_seed(seed: int, frame: int) -> int:
    """The seed of a row's depth decoding at a frame: SplitMix64 (Steele et al. 2014) of both.

    With the row's seed itself, all frames would share their random numbers.
    """
    x = (seed + (frame + 1) * 0x9E3779B97F4A7C15) % 2**64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> shift)) * factor % 2**64
    return x ^ (x >> 31)
