"""One decode per recipe and cut on tiny models: with kernels and CUDA graphs against the torch path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from unittest.mock import patch

import torch
from gpu_bench.decoding import target_of
from gpu_bench.plan import Plan
from gpu_bench.published import PUBLISHED, PublishedModel, StepModel
from gpu_bench.records import Record, one_line, record_of

from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.graph_capture import VARIABLE as GRAPHS
from mmspec.decoding.layout import Layout, TokenKind
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.to_end import decode_to_end
from mmspec.drafters.ngram import NGramTable
from mmspec.errors import ArgumentError
from mmspec.kernels.backend import VARIABLE as KERNELS
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.testing.toys import FEATURES, LAYERS, toy_codebooks, toy_heads
from mmspec.ways_to_draft import RECIPES

ROWS, SIDE, CODES = 2, 4, 24
CUTS = {
    "none": {},
    "top-k and top-p": {"top_k": 9, "top_p": 0.8},
    "min-p and typical-p": {"min_p": 0.05, "typical_p": 0.9},
}
MODELS: dict[TokenKind, PublishedModel] = {
    "tokens": replace(
        PUBLISHED["llamagen-b"],
        layers=LAYERS,
        length=SIDE**2,
        arguments={"dim": FEATURES, "n_head": 2, "grid_size": SIDE, "vocab_size": CODES, "num_classes": 2},
    ),
    "columns": replace(
        PUBLISHED["musicgen-large"],
        layers=3,
        length=SIDE**2,
        prompt=3,
        arguments={
            "hidden_size": 32, "ffn_dim": 32, "num_attention_heads": 2, "vocab_size": CODES, "num_codebooks": 2,
            "pad_token_id": 0, "bos_token_id": 0,
        },
    ),
}  # fmt: skip


def smoke(plan: Plan, device: torch.device) -> Iterator[Record]:
    """All recipes at all cuts, in several processes: most of the time goes into compiling kernels."""
    tasks = [(kind, name) for kind in MODELS for name in plan.smoke or RECIPES if RECIPES[name].supports(kind)]
    if plan.workers == 1:
        for task in tasks:
            yield from compared(device, *task)
        return
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    workers = min(plan.workers, max(1, (os.cpu_count() or 1) - 2))
    # A process per recipe: an error on a device ends every later call of its process.
    with ProcessPoolExecutor(workers, context, max_tasks_per_child=1) as pool:
        running = {pool.submit(partial(_compared, device), *task): task for task in tasks}
        for done in as_completed(running):
            kind, name = running[done]
            try:
                yield from done.result()
            except Exception as error:
                yield {"kind": kind, "recipe": name, "error": one_line(error)}


def _compared(device: torch.device, kind: TokenKind, name: str) -> list[Record]:
    return list(compared(device, kind, name))


def compared(device: torch.device, kind: TokenKind, name: str) -> Iterator[Record]:
    """A recipe at every cut: whether its tokens are those of the torch path without CUDA graphs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, draft = (replace(MODELS[kind], layers=n).on(device, torch.float32) for n in (MODELS[kind].layers, 1))
    # Without a device, kernels run in Triton's interpreter alone.
    ours = device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
    for cut, knobs in CUTS.items():
        params = SamplingParams(0.9, guidance_scale=2.0, **knobs)  # type: ignore[arg-type]

        def measure(params: SamplingParams = params) -> Record:
            decode = partial(_decode, model, draft, kind, name, params)
            with patch.dict(os.environ, {KERNELS: "torch", GRAPHS: "off"}):
                try:
                    wanted = decode()
                except ArgumentError as error:  # the model has not what the recipe needs
                    return {"refused": str(error)}
            with patch.dict(os.environ, {KERNELS: "triton"} if ours else {}):
                found = decode()
            if not torch.equal(found, wanted):
                raise AssertionError(
                    f"{int((found != wanted).sum())} of {wanted.numel()} tokens are not those of torch"
                )
            return {"tokens": wanted.numel()}

        yield record_of({"kind": kind, "recipe": name, "cut": cut}, measure)


def _decode(model: StepModel, draft: StepModel, kind: TokenKind, name: str, params: SamplingParams) -> torch.Tensor:
    target, device = target_of(model, ROWS), model.heads[0].weight.device
    alone = SamplingParams(0.9, top_k=params.top_k, top_p=params.top_p)
    if kind == "tokens":
        layout = Layout(SIDE**2, SIDE)
        generator = torch.Generator().manual_seed(1)
        pairs = torch.randint(CODES, (CODES + 1, CODES), generator=generator)
        (codebook,) = toy_codebooks(CODES, 1, 2)
        resources = DraftResources(
            NGramTable(pairs.to(device)),
            lambda: target_of(draft, ROWS),
            [alone] * ROWS,
            lambda: codebook,
            heads={kind: head.to(device) for kind, head in toy_heads(CODES, SIDE, 3).items()},
        )
    else:
        layout = Layout(SIDE**2, cell=(2,))
        resources = DraftResources(draft_model=lambda: target_of(draft, ROWS), draft_sampling=[alone] * ROWS)
    rows = PreparedRows(target, layout, [params] * ROWS, resources)
    return decode_to_end(rows.batch(parse(name), range(ROWS))).tokens.cpu()
