"""Seconds of a call on a device, by CUDA events, and by the clock on the wall."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from mmspec.decoding.graph_capture import with_plans

_WARMUP = 2


@dataclass(frozen=True)
class CallTime:
    """The time of a call.

    Attributes:
        device: Median seconds on the device, without the time that the host takes to launch; None on a CPU, or if the
            call cannot be captured in a CUDA graph.
        device_p10: The 10th percentile of the same.
        device_p90: The 90th percentile of the same.
        wall: Median seconds from the launch until the result is there.
        wall_p90: The 90th percentile of the same.
    """

    device: float | None
    device_p10: float | None
    device_p90: float | None
    wall: float
    wall_p90: float

    @property
    def seconds(self) -> float:
        """On the device if known, else on the wall."""
        return self.wall if self.device is None else self.device


def time_calls(
    calls: Sequence[Callable[[], object]], device: torch.device, repeats: int, captured: bool = True
) -> CallTime:
    """The time of one of several equal calls, which are made in turn.

    Args:
        calls: The calls. With several, on inputs that exceed the device's cache together, none finds its input there.
        device: Where they run.
        repeats: Measured rounds, at least 1.
        captured: Whether the time on the device is that of a captured call. A call that waits for the device cannot be
            captured; its time is then the sum of its kernels and copies.
    """
    for _ in range(_WARMUP):
        for call in calls:
            call()
    walls = []
    for n in range(max(repeats, len(calls))):
        synchronize(device)
        start = time.perf_counter()
        calls[n % len(calls)]()
        synchronize(device)
        walls.append(time.perf_counter() - start)
    spans = None
    if device.type == "cuda":
        with with_plans() if captured else nullcontext():
            spans = _device_seconds(calls, device, repeats) if captured else _busy_seconds(calls, device, repeats)
    wall, wall_p90 = np.percentile(walls, (50, 90)).tolist()
    if spans is None:
        return CallTime(None, None, None, wall, wall_p90)
    low, middle, high = np.percentile(spans, (10, 50, 90)).tolist()
    return CallTime(middle, low, high, wall, wall_p90)


def _busy_seconds(calls: Sequence[Callable[[], object]], device: torch.device, repeats: int) -> list[float]:
    """Seconds per call in which the device computes or copies, as its profiler tells."""
    spans = []
    for n in range(min(repeats, 10)):
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            calls[n % len(calls)]()
            synchronize(device)
        events = profiled.events() or []
        spans.append(sum(event.device_time for event in events if event.device_type.name == "CUDA") / 1e6)
    return spans


def _device_seconds(calls: Sequence[Callable[[], object]], device: torch.device, repeats: int) -> list[float] | None:
    """Seconds per call of replays of a CUDA graph that makes each call; None if they cannot be captured."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
    calls = list(calls) * max(1, 10 // len(calls))  # so that the time of a replay itself does not count
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):  # attention plans of captured calls, see `mmspec.decoding.graph_capture`
        calls[0]()
    try:
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for call in calls:
                call()
    except RuntimeError:
        return None
    graph.replay()
    spans = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        spans.append(start.elapsed_time(end) / 1000 / len(calls))
    return spans


def first_call(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of a call that was never made before, by the clock on the wall."""
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    """Waits for a CUDA device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def copy_bandwidth(device: torch.device, bytes_moved: int = 2**31) -> float:
    """Bytes per second, read and written, of a copy much larger than any cache."""
    source = torch.randn(bytes_moved // 8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / time_calls([lambda: target.copy_(source)], device, 10).seconds


def product_flops(device: torch.device, size: int = 8192, dtype: torch.dtype = torch.bfloat16) -> float:
    """Floating-point operations per second of a product of square matrices of random numbers."""
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    return 2 * size**3 / time_calls([lambda: torch.mm(left, right, out=out)], device, 10).seconds
