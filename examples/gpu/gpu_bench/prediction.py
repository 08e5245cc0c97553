"""Predicted seconds of a call, and the predicted gain of windows, from counted launches.

A captured call takes, for every kernel, the fixed time of a kernel and the longer of the times of its bytes and of its
operations. A window costs the same sum for its own shapes, and what lies between two calls of the model: a few kernels,
and waits. The gain is the time of captured plain decoding per token over that of a window per token that it
gives on average. Nothing here was fitted to a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from gpu_bench.counting import Launch, Trace, fake_device, trace
from gpu_bench.devices import Device
from gpu_bench.published import PublishedModel, StepModel

# Outside of the model, between two calls: launches and waits, of a step without drafts and of a window, at any batch.
# Those of a window are counted (`tests/decoding/test_window_counts.py`, most recipes at up to 64 rows); those of a step
# are estimated. The host issues so few while the device still runs the model.
PLAIN_LAUNCHES, PLAIN_WAITS = 12, 1
WINDOW_LAUNCHES, WINDOW_WAITS = 11, 1
# Of a code of a frame without drafts besides its call, estimated: slots, a mask, the sampler. All codes are sampled in
# one graph, without a wait (`sample_frame` of `mmspec.audio.depth.captured_depth`).
CODE_LAUNCHES = 5
WORTHWHILE = 1.1  # gains below this are not worth a window: they are within the noise of a measurement


@dataclass(frozen=True)
class Step:
    """The predicted cost of a call that reads one window of every row.

    Attributes:
        rows: Rows, B.
        width: Tokens of the window.
        launches: Kernels.
        bytes: That they move.
        flops: Of their products.
        seconds: Predicted, captured in a CUDA graph, without what lies between calls.
        eager: Predicted, launched one by one.
    """

    rows: int
    width: int
    launches: int
    bytes: int
    flops: int
    seconds: float
    eager: float


@dataclass(frozen=True)
class Gain:
    """The predicted gain of a window over captured plain decoding.

    Attributes:
        rows: Rows, B.
        width: Tokens of the window.
        tokens: Tokens that a window gives on average.
        seconds: Predicted seconds per token and row.
        speedup: Over a step without drafts.
    """

    rows: int
    width: int
    tokens: float
    seconds: float
    speedup: float


@dataclass(frozen=True)
class Prediction:
    """The predictions of a model on a device."""

    steps: list[Step]
    depth_steps: list[Step]
    gains: list[Gain]

    def best(self, rows: int) -> Gain:
        """The width with the largest gain at a batch size; width 1 if no window is worth it."""
        gains = [gain for gain in self.gains if gain.rows == rows]
        best = max(gains, key=lambda gain: gain.speedup)
        return best if best.speedup >= WORTHWHILE else next(gain for gain in gains if gain.width == 1)

    def ends_at(self) -> int | None:
        """The smallest batch at which no window is worth it; None if one is worth it at every batch."""
        return next((rows for rows in sorted({g.rows for g in self.gains}) if self.best(rows).width == 1), None)


def counted(model: PublishedModel, rows: Sequence[int], widths: Sequence[int]) -> tuple[Traces, Traces]:
    """The traces of steps, and those of the depth decoder, by rows and width, in the middle of an output.

    All layers of a model are equal, so that two models of one and of two layers are enough.
    """
    middle = model.prompt + model.length // 2
    by_layers: list[tuple[Traces, Traces]] = []
    with fake_device() as device, torch.inference_mode():
        for layers in (1, 2):
            made = model.on(device, torch.bfloat16, layers)
            deep = {} if made.depth is None else _traces(made.depth, rows, widths, 2 + model.depth_steps)
            by_layers.append((_traces(made, rows, widths, middle), deep))
    (first, depth), (second, _) = by_layers
    whole = {case: one.followed_by(second[case].without(one), model.layers - 1) for case, one in first.items()}
    return whole, depth


Traces = dict[tuple[int, int], Trace]


def _traces(model: StepModel, rows: Sequence[int], widths: Sequence[int], end: int) -> Traces:
    found = {}
    for count in rows:
        for width in widths:
            call = model.step(count, width, end)
            call()  # allocates the cache
            found[count, width] = trace(call)
    return found


def seconds_of(traced: Trace, device: Device) -> float:
    """Predicted seconds of a captured call."""
    return sum((device.kernel + _work(launch, device)) * count for launch, count in traced.launches.items())


def eager_seconds(traced: Trace, device: Device) -> float:
    """Predicted seconds of a call whose kernels the host launches one by one."""
    return sum(max(device.launch, device.kernel + _work(one, device)) * n for one, n in traced.launches.items())


def _work(launch: Launch, device: Device) -> float:
    """Seconds of the bytes or of the operations of a launch, whichever are more."""
    return max(launch.bytes / device.bandwidth, launch.flops / device.flops)


def predict(
    model: PublishedModel, device: Device, rows: Sequence[int], windows: Sequence[tuple[int, float]]
) -> Prediction:
    """The predictions of a model.

    Args:
        model: The model.
        device: The device.
        rows: Batch sizes.
        windows: Widths of windows, and the tokens that each gives on average; plain decoding is added as the first.
    """
    windows = [(1, 1.0), *windows]
    widths = sorted({width for width, _ in windows})
    whole, depth = counted(model, rows, widths)
    steps = [step_of(case, traced, device) for case, traced in whole.items()]
    depth_steps = [step_of(case, traced, device) for case, traced in depth.items()]
    gains = []
    for count in rows:
        by_width = {step.width: step.seconds for step in steps if step.rows == count}
        deep = {step.width: step.seconds for step in depth_steps if step.rows == count}
        plain = by_width[1] + between(device, 1)
        frame = plain + model.depth_steps * (deep[1] + CODE_LAUNCHES * device.kernel) if deep else plain
        for width, tokens in windows:
            if deep and width == 1:
                seconds = frame
            elif deep:  # windows along the depth of a frame
                seconds = plain + model.depth_steps / tokens * (deep[width] + between(device, width))
            else:
                seconds = (by_width[width] + between(device, width)) / tokens
            gains.append(Gain(count, width, tokens, seconds, frame / seconds))
    return Prediction(steps, depth_steps, gains)


def step_of(case: tuple[int, int], traced: Trace, device: Device) -> Step:
    """The predicted cost of a traced call of (rows, width)."""
    seconds, eager = seconds_of(traced, device), eager_seconds(traced, device)
    return Step(*case, traced.count, traced.bytes, traced.flops, seconds, eager)


def between(device: Device, width: int) -> float:
    """Predicted seconds between two calls of the model: of the kernels there, and of the device that idles."""
    launches, waits = (PLAIN_LAUNCHES, PLAIN_WAITS) if width == 1 else (WINDOW_LAUNCHES, WINDOW_WAITS)
    return launches * device.kernel + waits * device.wait


def tokens_per_window(acceptance: Sequence[float], width: int) -> float:
    """Tokens that a window of `width` tokens gives on average: the accepted drafts and one more."""
    total, reached = 1.0, 1.0
    for slot in range(width - 1):
        reached *= acceptance[min(slot, len(acceptance) - 1)]
        total += reached
    return total
