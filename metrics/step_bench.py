"""What one target call takes against the time its bytes need: `mmspec bench image --random-weights`.

A step at batch 1 has to read every weight once, and what the cache holds. Those bytes over the bandwidth of a copy,
measured in the same run, are the floor. Random weights serve as well as others for that; how many drafts they would
accept means nothing, so nothing is decoded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from mmspec.errors import unknown_name
from mmspec.metrics.kernel_bench import copy_bandwidth, timed
from mmspec.vision.llamagen.gpt import LlamaGenGPT
from mmspec.vision.llamagen.graphed import GraphedTarget
from mmspec.vision.llamagen.target import LlamaGenTarget

# Width, layers, heads and tokens per side of the published class-conditional models.
CONFIGS = {
    "llamagen-b": (768, 12, 12, 16),
    "llamagen-l": (1024, 24, 16, 16),
    "llamagen-xl": (1280, 36, 20, 24),
    "llamagen-xxl": (1536, 48, 24, 24),
}


@dataclass(frozen=True)
class StepTime:
    """One kind of call. `seconds` are the median, least and most; `share` is floor / median."""

    name: str
    window: int
    seconds: tuple[float, float, float]
    floor: float
    share: float


def bench_steps(
    config: str, device: torch.device, dtype: torch.dtype, batch: int, window: int, repeats: int
) -> list[StepTime]:
    """Times plain and window steps in the middle of an image, with guidance, read the ordinary way and recorded.

    **Raises:** `UnknownNameError` for another config than those of `CONFIGS`.
    """
    if config not in CONFIGS:
        raise unknown_name("config", config, CONFIGS)
    dim, layers, heads, grid = CONFIGS[config]
    with torch.device(device), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        gpt = LlamaGenGPT(dim=dim, n_layer=layers, n_head=heads, grid_size=grid).to(dtype).eval()
    weights = sum(p.nbytes for name, p in gpt.named_parameters() if "embedding" not in name)
    bandwidth = copy_bandwidth(device)
    at = np.full(batch, grid * grid // 2)
    read = weights + 2 * batch * 2 * layers * dim * (int(at[0]) + 1) * dtype.itemsize
    found = []
    with torch.inference_mode():
        for recorded in (False, True):
            condition = torch.zeros(batch, dtype=torch.int64, device=device)
            plain = LlamaGenTarget(gpt, condition, gpt.unconditional(batch), None, window)
            target = GraphedTarget(plain) if recorded else plain
            target.prefill()
            for width in (1, window):
                tokens = torch.zeros(batch, width, dtype=torch.int64, device=device)
                target.forward(tokens, at)  # two buffers take turns
                seconds = timed(lambda t=tokens, model=target: model.forward(t, at), device, repeats)  # type: ignore[misc]
                name = f"{'window' if width > 1 else 'plain'} step{', recorded' if recorded else ''}"
                found.append(StepTime(name, width, seconds, read / bandwidth, read / bandwidth / seconds[0]))
    return found
