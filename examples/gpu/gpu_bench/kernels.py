"""What a device attains, verification kernels, and every attention backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict

import numpy as np
import torch
import torch.nn.functional as F
from gpu_bench.plan import KernelCase, Plan
from gpu_bench.records import Record, dtype_of, record_of
from gpu_bench.timing import copy_bandwidth, first_call, product_flops, time_calls
from torch.nn.attention import SDPBackend, sdpa_kernel

from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.rejection import Draft, ratio
from mmspec.sampling.rng import RESAMPLE, CounterRNG
from mmspec.sampling.sampler import TokenSampler

BACKENDS = {
    "default": None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "split": None,  # `mmspec.kernels.attention`
}
CUTS = {"none": (0, 1.0), "top-k": (2000, 1.0), "top-p": (0, 0.9), "top-k and top-p": (2000, 0.9)}


def kernels(plan: Plan, device: torch.device) -> Iterator[Record]:
    """A copy and a product, every kernel of a window at all cuts, and attention."""
    yield from _speed(plan, device)
    for case in plan.kernels:
        for name, cut in CUTS.items():
            yield from _kernels(plan, device, case, name, cut)
    yield from _attention_cases(plan, device)


def _speed(plan: Plan, device: torch.device) -> Iterator[Record]:
    yield record_of({"case": "copy"}, lambda: {"bytes_per_second": copy_bandwidth(device, plan.copy)})
    yield record_of(
        {"case": "product"}, lambda: {"flops_per_second": product_flops(device, plan.product, dtype_of(device))}
    )


def _kernels(plan: Plan, device: torch.device, case: KernelCase, name: str, cut: tuple[int, float]) -> Iterator[Record]:
    # Triton reads whether to interpret kernels when it is imported.
    from mmspec.kernels.accept import verify_window
    from mmspec.kernels.coupling import couple_maximally
    from mmspec.kernels.fused_sampler import Settings, fused_sample

    rows, width, dtype = case.rows, case.width, dtype_of(device)
    facts = {"cut": name, **asdict(case), "dtype": str(dtype).removeprefix("torch.")}
    shape = (rows, width, case.vocab_size)
    moved = int(np.prod(shape)) * dtype.itemsize * (2 if case.guided else 1)
    inputs = []
    for _ in range(min(max(1, -(-plan.cache // moved)), 64)):
        cond = (2 * torch.randn(shape, device=device)).to(dtype)
        inputs.append(Logits(cond, torch.randn(shape, device=device).to(dtype) if case.guided else None))
    top_k, top_p = cut
    scale = 4.0 if case.guided else 1.0
    settings = Settings(
        torch.full((rows, width), scale, device=device),
        torch.full((rows,), 0.9, device=device),
        torch.full((rows,), top_k, dtype=torch.int32, device=device) if top_k else None,
        torch.full((rows,), top_p, device=device) if top_p < 1 else None,
        None,
        None,
    )
    u, drafts = torch.rand(rows, width, device=device), torch.randint(case.vocab_size, (rows, width), device=device)

    def timed(kernel: str, calls: list[Callable[[], object]], bytes_moved: int) -> Record:
        def measure() -> Record:
            taken = time_calls(calls, device, plan.repeats, captured=kernel != "window")
            return {**asdict(taken), "bytes": bytes_moved, "bandwidth": bytes_moved / taken.seconds}

        return record_of(facts | {"kernel": kernel}, measure)

    with torch.inference_mode():
        yield timed(
            "fused_sample", [lambda z=z: fused_sample(z.cond, z.uncond, settings, u, drafts) for z in inputs], moved  # type: ignore[misc]
        )  # fmt: skip
        try:
            fused = [fused_sample(z.cond, z.uncond, settings, u, drafts) for z in inputs]
        except Exception:
            return  # the record above has the error
        p = [(found.stats, found.stats[:, :-1]) for found in fused]
        x, sampled, none = drafts[:, :-1].contiguous(), fused[0].tokens, torch.zeros_like(u)
        # At random numbers that reject every draft: the first slot of each row is resampled, and all slots after it.
        yield timed(
            "verify", [lambda s=s, q=q: verify_window(s, q, x, none, sampled, u, u) for s, q in p], 2 * moved // width  # type: ignore[misc]
        )  # fmt: skip
        first = torch.zeros(rows, dtype=torch.int64, device=device)
        yield timed(
            "couple",
            [lambda s=s, q=q: couple_maximally(s, q, x, drafts, sampled, first, none + 1, u) for s, q in p],  # type: ignore[misc]
            2 * moved,
        )
        yield timed("window", _windows(inputs, facts, cut, device), moved)


def _windows(
    inputs: list[Logits], facts: Record, cut: tuple[int, float], device: torch.device
) -> list[Callable[[], object]]:
    """The whole verification of a window, with the samples for the next one, as decoding does it."""
    rows, width, scale = facts["rows"], facts["width"], 4.0 if facts["guided"] else 1.0
    params = SamplingParams(temperature=0.9, top_k=cut[0], top_p=cut[1], guidance_scale=scale)
    sampler, rng = TokenSampler([params] * rows, None, device), CounterRNG(range(rows), device)
    positions = np.arange(width)[None].repeat(rows, 0)

    def call(logits: Logits) -> object:
        before = Logits(logits.cond[:, :-1], None if logits.uncond is None else logits.uncond[:, :-1])
        q = sampler(before, Numbers(positions[:, :-1]))
        tokens = sampler.ops.sample(q, rng.window(positions[:, :-1], 0)[RESAMPLE])
        draws = rng.window(positions, 1)
        verdict = sampler.verify(sampler(logits, Numbers(positions)), Draft(tokens, q), ratio, draws)
        return sampler.ops.sample(verdict.p, draws[RESAMPLE])

    return [lambda z=z: call(z) for z in inputs[:4]]  # type: ignore[misc]


def _attention_cases(plan: Plan, device: torch.device) -> Iterator[Record]:
    """Every attention backend at new cache lengths: the first call at a length, and later ones."""
    for heads, key_heads, head_dim, rows in plan.attention:
        for width in (1, 16):
            for name in BACKENDS:
                case = {
                    "heads": heads, "key_heads": key_heads, "head_dim": head_dim, "rows": rows, "width": width,
                    "backend": name,
                }  # fmt: skip
                shape = (heads, key_heads, head_dim, rows, width)
                yield record_of(case, lambda shape=shape, name=name: _attention(plan, device, shape, name))  # type: ignore[misc]


def _attention(plan: Plan, device: torch.device, shape: tuple[int, int, int, int, int], name: str) -> Record:
    heads, key_heads, head_dim, rows, width = shape
    dtype, capacity = dtype_of(device), 256 + 8 * plan.lengths
    q = torch.randn(rows, heads, width, head_dim, device=device).to(dtype)
    store = torch.randn(2, rows, key_heads, capacity, head_dim, device=device).to(dtype)

    def call(end: int) -> object:
        mask = torch.zeros(rows, 1, width, end, dtype=dtype, device=device)
        k, v = store[..., :end, :]
        if name == "split":
            from mmspec.kernels.attention import attend  # Triton may be missing

            return attend(q, k, v, mask, head_dim**-0.5)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=heads != key_heads)

    ends = [256 + 8 * n for n in range(plan.lengths)]

    def measure() -> Record:
        call(capacity)  # whatever is loaded once
        firsts = [first_call(lambda end=end: call(end), device) for end in ends]  # type: ignore[misc]
        again = time_calls([lambda: call(ends[-1])], device, plan.repeats)
        return {"first_call": float(np.median(firsts)), "slowest_first_call": max(firsts), **asdict(again)}

    with torch.inference_mode():
        if name == "default":
            mask = torch.zeros(rows, 1, width, capacity, dtype=dtype, device=device)
            chosen = torch._fused_sdp_choice(q, store[0], store[1], mask, enable_gqa=heads != key_heads)
            return measure() | {"chosen": SDPBackend(chosen).name.lower()}
        with nullcontext() if (backend := BACKENDS[name]) is None else sdpa_kernel(backend):
            return measure()
