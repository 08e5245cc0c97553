"""The parts of `mmspec bench gpu`. Each yields one record per case, so that what is finished survives what fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from mmspec.batching.request import PreparedRows
from mmspec.decoding.assembly import NO_RESOURCES
from mmspec.decoding.layout import Layout
from mmspec.decoding.to_end import decode_to_end
from mmspec.metrics.bench.gpu.devices import DEVICES
from mmspec.metrics.bench.gpu.plan import KernelCase, Plan
from mmspec.metrics.bench.gpu.prediction import counted, step_of
from mmspec.metrics.bench.gpu.published import StepModel, llamagen
from mmspec.metrics.bench.gpu.timing import copy_bandwidth, first_call, product_flops, time_calls
from mmspec.recipes import parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.rejection import Draft, ratio, sample
from mmspec.sampling.rng import RESAMPLE, CounterRNG
from mmspec.sampling.sampler import TokenSampler
from mmspec.vision.llamagen.graph_cache import new_target
from mmspec.vision.llamagen.transformer import LlamaGenTransformer

Record = dict[str, Any]
PartRun = Callable[[Plan, torch.device], Iterator[Record]]

BACKENDS = {
    "default": None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
    "split": None,  # `mmspec.kernels.attention`
}
CUTS = {"none": (0, 1.0), "top-k": (2000, 1.0), "top-p": (0, 0.9), "top-k and top-p": (2000, 0.9)}


def record_of(case: Record, measure: Callable[[], Record]) -> Record:
    """A case with what was measured, or with the error in one line.

    Raises:
        torch.AcceleratorError: If the device cannot be used any more.
    """
    try:
        return case | measure()
    except torch.AcceleratorError:
        raise
    except Exception as error:
        return case | {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def dtype_of(device: torch.device) -> torch.dtype:
    """bfloat16 on a CUDA device, else float32."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def speed(plan: Plan, device: torch.device) -> Iterator[Record]:
    """What the device attains: a copy and a matrix product."""
    yield record_of({"case": "copy"}, lambda: {"bytes_per_second": copy_bandwidth(device, plan.copy)})
    yield record_of(
        {"case": "product"}, lambda: {"flops_per_second": product_flops(device, plan.product, dtype_of(device))}
    )


def tests(plan: Plan, device: torch.device) -> Iterator[Record]:
    """The tests marked gpu, of a checkout; on a CPU they are skipped."""
    root = Path(__file__).parents[3]
    if not (root / "tests" / "conftest.py").exists():
        yield {"case": "pytest", "error": "not a checkout: the installed package has no tests"}
        return
    with TemporaryDirectory() as folder:
        found = Path(folder, "junit.xml")
        # Without the options of pyproject.toml, which need plugins.
        words = ["-o", "addopts=", "--import-mode=importlib", "-m", "gpu", "-q", "--maxfail=20"]
        words += ["-p", "no:cacheprovider", "-p", "no:benchmark", f"--junitxml={found}", *plan.tests]
        workers = min(16, (os.cpu_count() or 1) - 2)  # most of the time goes into compiling kernels, on one core each
        if workers > 1 and find_spec("xdist") is not None:
            words += ["-n", str(workers)]
        done = subprocess.run([sys.executable, "-m", "pytest", *words], cwd=root, capture_output=True, text=True)
        if not found.exists():
            yield {"case": "pytest", "error": (done.stdout + done.stderr)[-2000:]}
            return
        counts = {"passed": 0, "failed": 0, "skipped": 0}
        for case in ElementTree.parse(found).iter("testcase"):
            bad = case.find("failure") if case.find("error") is None else case.find("error")
            if bad is not None:
                name = f"{case.get('classname')}::{case.get('name')}"
                yield {"case": name, "error": (bad.get("message") or bad.text or "")[:600]}
            counts["failed" if bad is not None else "skipped" if case.find("skipped") is not None else "passed"] += 1
    yield {"case": "pytest", **counts}


def attention(plan: Plan, device: torch.device) -> Iterator[Record]:
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


def kernels(plan: Plan, device: torch.device) -> Iterator[Record]:
    """Every kernel of a window by device time, and the verification of the window by the clock, at all cuts."""
    for case in plan.kernels:
        for name, cut in CUTS.items():
            yield from _kernels(plan, device, case, name, cut)


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
        q = sampler(before, positions[:, :-1])
        tokens = sample(q, rng.window(positions[:, :-1], 0)[RESAMPLE])
        draws = rng.window(positions, 1)
        verdict = sampler.verify(sampler(logits, positions), Draft(tokens, q), ratio, draws)
        return sample(verdict.p, draws[RESAMPLE])

    return [lambda z=z: call(z) for z in inputs[:4]]  # type: ignore[misc]


def steps(plan: Plan, device: torch.device) -> Iterator[Record]:
    """Plain and window steps of the published sizes with random weights, captured and eager."""
    for name, published in plan.models.items():
        case = {"model": name}
        try:
            model = published.on(device, dtype_of(device))
        except Exception as error:
            yield case | {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
            continue
        middle = published.prompt + published.length // 2
        yield from _steps(plan, device, case, model, middle)
        if model.depth is not None:
            yield from _steps(plan, device, case | {"part": "depth"}, model.depth, 2 + published.depth_steps)
        del model
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _steps(plan: Plan, device: torch.device, case: Record, model: StepModel, end: int) -> Iterator[Record]:
    for rows in plan.rows:
        for width in plan.widths:

            def measure(rows: int = rows, width: int = width) -> Record:
                with torch.inference_mode():
                    call = model.step(rows, width, end)
                    return asdict(time_calls([call], device, max(plan.repeats // 4, 2)))

            yield record_of(case | {"rows": rows, "width": width, "end": end}, measure)


def loop(plan: Plan, device: torch.device) -> Iterator[Record]:
    """Decoding with everything between the calls of a model; the drafts of random weights mean nothing, time does."""
    for name in plan.loop:
        published = plan.models[name]
        gpt = llamagen(published, published.layers, device, dtype_of(device))
        tokens = min(plan.tokens, published.length)
        for recipe in ("plain", "scd:window=8", "scd:window=16"):
            case = {"model": name, "recipe": recipe}
            yield record_of(case, lambda gpt=gpt, tokens=tokens, recipe=recipe: _decode(gpt, tokens, recipe))  # type: ignore[misc]


def _decode(gpt: LlamaGenTransformer, tokens: int, recipe: str) -> Record:
    """The time per call of a run whose kernels are compiled and whose calls are captured."""
    chosen, params = parse(recipe), SamplingParams(temperature=0.9, top_k=2000, guidance_scale=4.0)
    for _ in range(2):  # the first run compiles and captures
        condition = torch.zeros(1, dtype=torch.int64, device=gpt.device)
        target = new_target(gpt, condition, gpt.unconditional(1), None, chosen.window)
        rows = PreparedRows(target, Layout(tokens), [params], NO_RESOURCES)
        stats = decode_to_end(rows.batch(chosen, [0])).stats
        del target, rows  # so that the next run takes over its graphs
    parts = {part: seconds / stats.target_calls for part, seconds in stats.seconds_by_part.items()}
    return {"calls": stats.target_calls, "seconds_per_call": stats.seconds / stats.target_calls, "by_part": parts}


def predicted(plan: Plan, device: torch.device) -> Iterator[Record]:
    """The seconds that the steps should take with the bandwidth and the operations per second measured here."""
    bandwidth = copy_bandwidth(device, plan.copy)
    flops = product_flops(device, plan.product, dtype_of(device))
    here = replace(DEVICES["h100"], title="this device", bandwidth=bandwidth, flops=flops)
    widths = sorted({plan.widths[0], plan.widths[-2], plan.widths[-1]})
    for name, published in plan.models.items():
        case = {"model": name}
        try:
            whole, depth = counted(published, plan.rows, widths)
        except Exception as error:
            yield case | {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
            continue
        for extra, traces in (({}, whole), ({"part": "depth"}, depth)):
            for shape, traced in traces.items():
                yield case | extra | asdict(step_of(shape, traced, here))


PARTS: dict[str, PartRun] = {
    "speed": speed, "tests": tests, "attention": attention, "kernels": kernels, "steps": steps, "loop": loop,
    "predicted": predicted,
}  # fmt: skip
