"""What one target call takes against the time its bytes need: `mmspec bench image --random-weights`.

A step at batch 1 has to read every weight once, and what the cache holds. Those bytes over the bandwidth of a copy,
measured in the same run, are the floor. Random weights serve as well as others for that; how many drafts they would
accept means nothing, so nothing is drafted. The last row is plain decoding with all that belongs to it, per token:
beside a plain step it shows what the loop costs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from mmspec.decoding.cuda_graphs import CUDAGraphTarget
from mmspec.decoding.layout import Layout
from mmspec.engine import run
from mmspec.errors import unknown_name
from mmspec.metrics.bench.kernels import SAMPLING, copy_bandwidth, timed
from mmspec.recipes import parse
from mmspec.vision.llamagen.gpt import LlamaGenGPT
from mmspec.vision.llamagen.graph_cache import new_target
from mmspec.vision.llamagen.target import LlamaGenTarget

TOKENS = 64  # that are decoded plainly

# Width, layers, heads and tokens per side of the published class-conditional models.
CONFIGS = {
    "llamagen-b": (768, 12, 12, 16),
    "llamagen-l": (1024, 24, 16, 16),
    "llamagen-xl": (1280, 36, 20, 24),
    "llamagen-xxl": (1536, 48, 24, 24),
}


@dataclass(frozen=True)
class StepTime:
    """A kind of call, or a token of a decoding. `seconds` are the median, least and most; `share` is floor / median."""

    name: str
    window: int
    seconds: tuple[float, float, float]
    floor: float
    share: float


def bench_steps(
    config: str, device: torch.device, dtype: torch.dtype, batch: int, window: int, repeats: int
) -> list[StepTime]:
    """Times plain and window steps in the middle of an image, with guidance, read the ordinary way and recorded.

    On a CPU "recorded" calls are made through the same buffers, and not recorded.

    Raises:
        UnknownNameError: For another config than those of `CONFIGS`.
    """
    if config not in CONFIGS:
        raise unknown_name("config", config, CONFIGS)
    dim, layers, heads, grid = CONFIGS[config]
    with torch.device(device), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        gpt = LlamaGenGPT(dim=dim, n_layer=layers, n_head=heads, grid_size=grid).eval()
        nn.Module.to(gpt, dtype)  # diffusers' own has a warning about it
    weights = sum(p.nbytes for name, p in gpt.named_parameters() if "embedding" not in name)
    bandwidth = copy_bandwidth(device)
    at = np.full(batch, grid * grid // 2)
    found = []

    def told(name: str, width: int, seconds: tuple[float, float, float], slots: int) -> StepTime:
        floor = (weights + 2 * batch * 2 * layers * dim * slots * dtype.itemsize) / bandwidth
        return StepTime(name, width, seconds, floor, floor / seconds[0])

    def decoded() -> object:
        """Every time a target of its own, as images have."""
        condition = torch.zeros(batch, dtype=torch.int64, device=device)
        target = new_target(gpt, condition, gpt.unconditional(batch), None, window)
        return run(target, parse("plain"), Layout(TOKENS), [SAMPLING] * batch, range(batch))

    with torch.inference_mode():
        for with_cuda_graphs in (False, True):
            condition = torch.zeros(batch, dtype=torch.int64, device=device)
            plain = LlamaGenTarget(gpt, condition, gpt.unconditional(batch), None, window)
            target = CUDAGraphTarget(plain) if with_cuda_graphs else plain
            target.prefill()
            for width in (1, window):
                tokens = torch.zeros(batch, width, dtype=torch.int64, device=device)
                target.forward(tokens, at)  # records it
                seconds = timed(lambda t=tokens, model=target: model.forward(t, at), device, repeats)  # type: ignore[misc]
                name = f"{'window' if width > 1 else 'plain'} step{', recorded' if with_cuda_graphs else ''}"
                found.append(told(name, width, seconds, int(at[0]) + 1))
        middle, least, most = (seconds / TOKENS for seconds in timed(decoded, device, repeats))
    return [*found, told("plain decoding, a token", 1, (middle, least, most), TOKENS // 2)]
