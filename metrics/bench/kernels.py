"""The cost of verification apart from any model: `mmspec bench kernels`.

The task is one window of speculative Jacobi decoding: guidance, temperature, top-k, the test of every draft token, the
resampling of the first rejected one, and fresh samples for all slots after it. Several implementations run on the same
logits:

- **loop**: as in the code of published models, row by row and draft by draft in Python, with `topk`, `softmax` and
  `multinomial` over the whole window.
- **torch**: the library's torch path; **compiled**: the same distribution through `torch.compile`.
- **triton**: the kernels (on a CUDA device).

Bytes are the least that have to move: each conditional and unconditional logit once. Bytes that an implementation reads
twice or writes in between do not count. Bandwidth is those bytes over the time; it is printed next to that of a copy
measured in the same run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from torch import Tensor

from mmspec.kernels.backend import VARIABLE
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.rejection import Draft, ratio, sample, verify
from mmspec.sampling.rng import RESAMPLE, CounterRNG
from mmspec.sampling.sampler import TokenSampler

SAMPLING = SamplingParams(temperature=0.9, top_k=2000, guidance_scale=4.0)


@dataclass(frozen=True)
class VerificationTime:
    """The time of one implementation.

    Attributes:
        name: "loop", "torch", "compiled" or "triton".
        batch: Rows.
        window: Draft tokens per row.
        vocab_size: Tokens of the vocabulary.
        dtype: Of the logits.
        seconds: Median, minimum and maximum of a call.
        bytes: That have to move.
        bandwidth: Bytes per second.
    """

    name: str
    batch: int
    window: int
    vocab_size: int
    dtype: str
    seconds: tuple[float, float, float]
    bytes: int
    bandwidth: float


@dataclass(frozen=True)
class KernelReport:
    """The times of all implementations.

    Attributes:
        ways: One per implementation.
        copy_bandwidth: Of a copy, bytes read and written per second.
    """

    ways: list[VerificationTime]
    copy_bandwidth: float


def bench_kernels(
    device: torch.device, batch: int, window: int, vocab_size: int, dtype: torch.dtype, repeats: int
) -> KernelReport:
    """Times every implementation that can run on the device; the first call of each is not timed."""
    generator = torch.Generator().manual_seed(0)
    shape = (batch, window + 1, vocab_size)
    cond = (2 * torch.randn(shape, generator=generator)).to(device, dtype)
    uncond = (cond + torch.randn(shape, generator=generator).to(device, dtype)) / 2
    logits, positions = Logits(cond, uncond), np.arange(window + 1)[None].repeat(batch, 0)
    previous = Logits(cond[:, :window] + 0.1, uncond[:, :window])  # the previous window's logits of these positions
    rng, sampler = CounterRNG(range(batch), device), TokenSampler([SAMPLING] * batch, None, device)

    def task(kernels: str) -> Callable[[], object]:
        with _kernels(kernels):
            draws = rng.window(positions[:, :window], 0)
            q = sampler(previous, draws.positions)
            tokens = sampler.ops.sample(q, draws[RESAMPLE])

        def once() -> object:
            with _kernels(kernels):
                randoms = rng.window(positions, 1)
                verdict = sampler.verify(sampler(logits, randoms.positions), Draft(tokens, q), ratio, randoms)
                return sampler.ops.sample(verdict.p, randoms[RESAMPLE])

        return once

    calls: dict[str, Callable[[], object]] = {"loop": _looped(logits), "torch": task("torch")}
    if device.type == "cuda":
        calls |= {"compiled": _compiled(logits), "triton": task("triton")}
    moved = 2 * cond.numel() * cond.element_size()
    found = []
    for name, call in calls.items():
        seconds = timed(call, device, repeats)
        size = batch, window, vocab_size, str(dtype).removeprefix("torch.")
        found.append(VerificationTime(name, *size, seconds, moved, moved / seconds[0]))
    return KernelReport(found, copy_bandwidth(device))


def timed(work: Callable[[], object], device: torch.device, repeats: int) -> tuple[float, float, float]:
    """Median, minimum and maximum seconds of a call, after one that is not timed."""
    taken = []
    for _ in range(repeats + 1):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - start)
    return median(taken[1:]), min(taken[1:]), max(taken[1:])


def copy_bandwidth(device: torch.device) -> float:
    """Bytes per second, read and written, of a copy much larger than any cache."""
    count = 2**28 if device.type == "cuda" else 2**25
    source = torch.zeros(count, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / timed(lambda: target.copy_(source), device, 10)[0]


def _looped(logits: Logits) -> Callable[[], object]:
    """The task as it is usually written."""
    assert logits.uncond is not None
    cond, uncond = logits.cond.float(), logits.uncond.float()

    def scores() -> Tensor:
        z = (uncond + SAMPLING.guidance_scale * (cond - uncond)) / SAMPLING.temperature
        floor = z.topk(min(SAMPLING.top_k, z.shape[-1])).values[..., -1:]
        return torch.where(z < floor, -torch.inf, z)

    drafted = scores().softmax(-1)
    drafts = torch.multinomial(drafted.flatten(0, 1), 1).view(drafted.shape[:2])

    def once() -> Tensor:
        p = scores().softmax(-1)
        u = torch.rand(p.shape, device=p.device)
        tokens = torch.multinomial(p.flatten(0, 1), 1).view(p.shape[:2])
        for row in range(p.shape[0]):
            for slot in range(p.shape[1] - 1):
                x = int(drafts[row, slot])
                if u[row, slot, x] < p[row, slot, x] / drafted[row, slot, x]:
                    tokens[row, slot] = x
                    continue
                residual = (p[row, slot] - drafted[row, slot]).clamp(min=0)
                tokens[row, slot] = torch.multinomial(residual if residual.sum() > 0 else p[row, slot], 1)[0]
                break
        p.clone()  # kept for the next window
        return tokens

    return once


def _compiled(logits: Logits) -> Callable[[], object]:
    """The torch path with its distribution compiled, the part that is as wide as the vocabulary."""
    assert logits.uncond is not None
    cond, uncond = logits.cond, logits.uncond
    scale, temperature = SAMPLING.guidance_scale, SAMPLING.temperature
    u = torch.rand(cond.shape[:2], device=cond.device)
    tokens = torch.zeros(cond.shape[0], cond.shape[1] - 1, dtype=torch.int64, device=cond.device)

    def distribution() -> tuple[Tensor, Tensor]:
        z = torch.lerp(uncond.float(), cond.float(), scale) / temperature
        floor = z.topk(min(SAMPLING.top_k, z.shape[-1])).values[..., -1:]
        p = torch.where(z < floor, -torch.inf, z).softmax(-1)
        return p, sample(p, u)

    compiled = torch.compile(distribution, dynamic=False)

    def once() -> object:
        p, sampled = compiled()
        return verify(p, Draft(tokens, p[:, :-1]), ratio, u, u), sampled

    return once


@contextmanager
def _kernels(kernels: str) -> Iterator[None]:
    """Selects the kernels of a block by their environment variable."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = kernels
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
