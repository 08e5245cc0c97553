"""The time of one target call against the time that its bytes need: `mmspec bench image --random-weights`.

A step at batch 1 has to read every weight and the KV cache once. Those bytes over the bandwidth of a copy, measured in
the same run, are the floor. Random weights are as good as trained ones for that; their acceptance rate would be
meaningless, so nothing is drafted. The last row is plain decoding per token, everything included: compared with a plain
step it shows the cost of the loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from mmspec.decoding.assembly import NO_RESOURCES, PreparedRows
from mmspec.decoding.cuda_graphs import CUDAGraphTarget
from mmspec.decoding.layout import Layout
from mmspec.decoding.to_end import decode_to_end
from mmspec.errors import unknown_name
from mmspec.metrics.bench.kernels import SAMPLING, copy_bandwidth, timed
from mmspec.recipes import parse
from mmspec.vision.llamagen.target import LlamaGenTarget, new_target
from mmspec.vision.llamagen.transformer import LlamaGenTransformer

TOKENS = 64  # of plain decoding

# Width, layers, heads and tokens per side of the published class-conditional models
CONFIGS = {
    "llamagen-b": (768, 12, 12, 16),
    "llamagen-l": (1024, 24, 16, 16),
    "llamagen-xl": (1280, 36, 20, 24),
    "llamagen-xxl": (1536, 48, 24, 24),
}


@dataclass(frozen=True)
class StepTime:
    """The time of one kind of call, or of one token of plain decoding.

    Attributes:
        name: Of the kind.
        window: Tokens per row.
        seconds: Median, minimum and maximum.
        floor: Seconds that its bytes need.
        share: The floor over the median.
    """

    name: str
    window: int
    seconds: tuple[float, float, float]
    floor: float
    share: float


def bench_steps(
    config: str, device: torch.device, dtype: torch.dtype, batch: int, window: int, repeats: int
) -> list[StepTime]:
    """Times plain and window steps in the middle of an image, with guidance, without and with CUDA graphs.

    On a CPU the calls "with CUDA graphs" go through the same static buffers without being captured.

    Args:
        config: One of `CONFIGS`.
        device: Where the model runs.
        dtype: Of the weights.
        batch: Rows.
        window: Tokens of a window step.
        repeats: Timed calls of each kind.

    Raises:
        UnknownNameError: If `config` is not one of `CONFIGS`.
    """
    if config not in CONFIGS:
        raise unknown_name("config", config, CONFIGS)
    dim, layers, heads, grid = CONFIGS[config]
    with torch.device(device), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        gpt = LlamaGenTransformer(dim=dim, n_layer=layers, n_head=heads, grid_size=grid).eval()
        gpt.to(dtype)
    weights = sum(p.nbytes for name, p in gpt.named_parameters() if "embedding" not in name)
    bandwidth = copy_bandwidth(device)
    at = np.full(batch, grid * grid // 2)
    found = []

    def step_time(name: str, width: int, seconds: tuple[float, float, float], slots: int) -> StepTime:
        floor = (weights + 2 * batch * 2 * layers * dim * slots * dtype.itemsize) / bandwidth
        return StepTime(name, width, seconds, floor, floor / seconds[0])

    def decode() -> object:
        """Plain decoding with a new target, as for every image."""
        condition = torch.zeros(batch, dtype=torch.int64, device=device)
        target = new_target(gpt, condition, gpt.unconditional(batch), None, window)
        rows = PreparedRows(target, Layout(TOKENS), [SAMPLING] * batch, NO_RESOURCES)
        return decode_to_end(rows.batch(parse("plain"), range(batch)))

    with torch.inference_mode():
        for with_cuda_graphs in (False, True):
            condition = torch.zeros(batch, dtype=torch.int64, device=device)
            plain = LlamaGenTarget(gpt, condition, gpt.unconditional(batch), None, window)
            target = CUDAGraphTarget(plain) if with_cuda_graphs else plain
            target.prefill()
            for width in (1, window):
                tokens = torch.zeros(batch, width, dtype=torch.int64, device=device)
                target.forward(tokens, at)  # captures it
                seconds = timed(lambda t=tokens, model=target: model.forward(t, at), device, repeats)  # type: ignore[misc]
                name = f"{'window' if width > 1 else 'plain'} step{', CUDA graph' if with_cuda_graphs else ''}"
                found.append(step_time(name, width, seconds, int(at[0]) + 1))
        middle, least, most = (seconds / TOKENS for seconds in timed(decode, device, repeats))
    return [*found, step_time("plain decoding, a token", 1, (middle, least, most), TOKENS // 2)]
