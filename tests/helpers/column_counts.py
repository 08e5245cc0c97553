"""Prints what windows of columns cost outside of the model, as `window_counts.py` does for tokens.

By model, recipe and batch, one entry for each window and for each plain step: whether rows have just left, the width
is new or a call was captured; whether the next call was launched ahead; and its launches, uploads and waits, and how
much the host launched between a wait and the next call of the model while the device had nothing to do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from mmspec.sampling.numbers import Numbers

os.environ["TRITON_INTERPRET"] = "1"

import pytest
import torch
from batch_runs import run
from counted_device import DEVICE, CountedColumns, counted_device
from torch import Tensor

from mmspec.audio.models.dia.decoding import DiaGuidance, DiaTarget, LatestColumn
from mmspec.audio.models.higgs.decoding import HiggsTarget, RepetitionLimit
from mmspec.audio.models.higgs_v3.decoding import HiggsV3Target
from mmspec.audio.models.moss_tts.decoding import MossTarget
from mmspec.audio.models.zonos2.decoding import Repetition, Zonos2Target
from mmspec.audio.multi_codebook.delay_pattern import linear_delays, triangles
from mmspec.audio.multi_codebook.history import ColumnHistory
from mmspec.audio.multi_codebook.history_target import HistoryTarget
from mmspec.decoding import device_windows
from mmspec.decoding.cuda_graphs import CUDAGraphTarget
from mmspec.decoding.layout import Layout
from mmspec.decoding.loop import RunningBatch
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.stats import Meter
from mmspec.environment.setup_work import setups
from mmspec.recipes import parse
from mmspec.sampling.constraints import ForcedCells
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import TokenSampler

BOOKS, VOCAB, LENGTH, SLACK = 3, 12, 20, 16
CASES = [
    ("musicgen", "plain", 1),
    ("musicgen", "plain", 4),
    ("musicgen", "scd:window=6", 1),
    ("musicgen", "scd:window=6", 4),
    ("musicgen", "scd:window=6,coupling=gumbel", 4),
    ("musicgen", "sjd:window=6,start=random", 4),
    ("musicgen", "recycle:window=6", 4),
    ("musicgen", "draft:window=4", 4),
    ("dia", "plain", 4),
    ("dia", "scd:window=6", 4),
    ("higgs", "scd:window=6", 4),
    ("higgs_v3", "scd:window=6", 4),
    ("moss", "scd:window=6", 4),
    ("zonos2", "scd:window=6", 4),
]
AHEAD = [
    ("musicgen", "plain"), ("musicgen", "scd:window=6"), ("musicgen", "draft:window=4"), ("dia", "plain"),
    ("dia", "scd:window=6"), ("higgs_repeating", "scd:window=6"), ("moss", "scd:window=6"), ("zonos2", "scd:window=6"),
]  # fmt: skip
PARAMS = SamplingParams(0.9, top_k=8, top_p=0.95)


def columns_before(rows: int, cells: int = BOOKS) -> ColumnHistory:
    return ColumnHistory(torch.empty(rows, 0, cells, dtype=torch.int64, device=DEVICE), LENGTH + SLACK)


def musicgen(inner: Any, rows: int) -> Any:
    return inner


def dia(inner: Any, rows: int) -> Any:
    ids = SimpleNamespace(eos_token_id=VOCAB - 2, pad_token_id=VOCAB - 1)
    config = SimpleNamespace(delay_pattern=[0, 1, 2], decoder_config=ids)
    last = [LatestColumn() for _ in range(rows)]
    return DiaTarget(inner, columns_before(rows), DiaGuidance(2.0, 5), LENGTH - 3, last, config)


def higgs(inner: Any, rows: int, repetition: RepetitionLimit | None = None) -> Any:
    config = SimpleNamespace(audio_stream_bos_id=VOCAB - 2, audio_stream_eos_id=VOCAB - 1, num_codebooks=BOOKS)
    sampler = None if repetition is None else TokenSampler([PARAMS] * rows, None, DEVICE)
    return HiggsTarget(inner, columns_before(rows), sampler, repetition, config)


def higgs_repeating(inner: Any, rows: int) -> Any:
    return higgs(inner, rows, RepetitionLimit(4, 2))


def higgs_v3(inner: Any, rows: int) -> Any:
    return HiggsV3Target(inner, columns_before(rows, 1), BOOKS, VOCAB - 2)


def moss(inner: Any, rows: int) -> Any:
    return MossTarget(inner, columns_before(rows), PARAMS, 1.2)


def zonos2(inner: Any, rows: int) -> Any:
    config: Any = SimpleNamespace(codebooks=BOOKS, codes=VOCAB - 3, end=VOCAB - 3)
    return Zonos2Target(inner, columns_before(rows), Repetition(window=8), config)


# By model: the target, whether it is guided, the code with which the end of a row begins, and the columns that end one.
MODELS: dict[str, tuple[Callable[[Any, int], Any], bool, int | None, Callable[[Tensor], Tensor] | None]] = {
    "musicgen": (musicgen, True, None, None),
    "dia": (dia, True, VOCAB - 2, lambda columns: columns[..., 2] == VOCAB - 2),
    "higgs": (higgs, False, VOCAB - 1, lambda columns: (columns == VOCAB - 1).all(-1)),
    "higgs_repeating": (higgs_repeating, False, VOCAB - 1, lambda columns: (columns == VOCAB - 1).all(-1)),
    "higgs_v3": (higgs_v3, False, VOCAB - 2, lambda columns: columns[..., 0] == VOCAB - 1),
    "moss": (moss, False, 1, lambda columns: columns[..., 0] == 2),
    "zonos2": (zonos2, False, VOCAB - 3, lambda columns: columns[..., 0] == VOCAB - 1),
}


def windows(name: str, recipe: str, rows: int, how: str = "") -> dict[str, Any]:
    """What each window and each plain step of a decode costs, and its tokens.

    Args:
        name: The model.
        recipe: The recipe.
        rows: B.
        how: "after" if no call is launched before the host has read the last one; "failing" if every third of those
            that are fails; "misread" if positions of columns are those of the host, which is wrong.
    """
    make, guided, code, ends = MODELS[name]
    found: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    with counted_device() as counted:

        def target(guided: bool) -> Any:
            model: Any = CountedColumns(counted, rows, BOOKS, VOCAB, LENGTH, guided, code)
            return make(CUDAGraphTarget(model), rows)

        waits = triangles(LENGTH, linear_delays(BOOKS), VOCAB if name == "musicgen" else 0, None)
        layout = Layout(LENGTH, cell=(BOOKS,), forced=ForcedCells(waits), ends=ends)
        resources = DraftResources(draft_model=lambda: target(False))
        step, shape, widths = RunningBatch.step, [(0, 0)], list[int]()
        count = Meter.count

        def costs() -> dict[str, Any]:
            launches = sum(counted.launches.values())
            numbers = {"launches": launches, "uploads": len(counted.uploads), "waits": len(counted.waits)}
            numbers["idle"] = counted.idle
            return {**numbers, "names": dict(counted.launches), "which": [*counted.uploads, *counted.waits]}

        def counting(meter: Meter, verdict: Any, *rest: Any) -> None:
            width = verdict.tokens.shape[1]
            count(meter, verdict, *rest)
            if width > 1:
                widths.append(width)
                return
            rows = len(rest[-1])
            steps.append({"rows": rows, "new": not steps or rows != steps[-1]["rows"], **costs()})
            counted.clear()

        def stepping(batch: RunningBatch) -> bool:
            counted.clear()
            before, captured, known = len(batch.state.ids), setups(), len(widths)
            running = step(batch)
            if len(widths) > known:
                shape.append((before, widths[-1]))
                new = shape[-1] != shape[-2] or setups() != captured or len(batch.state.ids) != before
                found.append({"new": new, "ahead": getattr(batch._windows, "_next", None) is not None, **costs()})
            return running

        own, asked, after = CUDAGraphTarget.forward_ahead, [0], HistoryTarget._after
        processed = HistoryTarget.forward_ahead

        def processing(target: HistoryTarget, *window: Any) -> Any:
            """Processors may launch the kernel that otherwise begins a verification; they follow the model's call."""
            found = processed(target, *window)
            counted.model_is_called()
            return found

        def refusing(target: CUDAGraphTarget, *window: Any) -> Any:
            asked[0] += 1
            return None if asked[0] % 3 == 0 else own(target, *window)

        with pytest.MonkeyPatch.context() as patch:
            if how == "after":
                patch.setattr(device_windows, "parts_ahead", lambda *_: None)
            elif how == "failing":
                patch.setattr(CUDAGraphTarget, "forward_ahead", refusing)
            elif how == "misread":
                patch.setattr(HistoryTarget, "_after", lambda own, x, at, n: after(own, x, Numbers(at.host), n))
            patch.setattr(HistoryTarget, "forward_ahead", processing)
            patch.setattr(RunningBatch, "step", stepping)
            patch.setattr(Meter, "count", counting)
            params = replace(PARAMS, guidance_scale=2.0 if name == "musicgen" else 1.0)
            out = run(target(guided), parse(recipe), layout, [params] * rows, range(rows), resources)
        tokens = out.tokens.cpu()
    return {"windows": found, "steps": steps, "tokens": tokens[:4].tolist(), "target_calls": out.stats.target_calls}


def main() -> None:
    """Prints all cases."""
    torch._C._set_only_lift_cpu_tensors(True)
    cases = {f"{name} {recipe} B={rows}": windows(name, recipe, rows) for name, recipe, rows in CASES}
    for name, recipe in AHEAD:
        cases[f"{name} {recipe} after"] = windows(name, recipe, 4, "after")
    for name, recipe in (AHEAD[1], AHEAD[3], AHEAD[-1]):
        cases[f"{name} {recipe} failing"] = windows(name, recipe, 4, "failing")
    cases["dia scd:window=6 misread"] = windows("dia", "scd:window=6", 4, "misread")
    cases["higgs_repeating scd:window=6 B=4"] = windows("higgs_repeating", "scd:window=6", 4)
    print(json.dumps(cases))


if __name__ == "__main__":
    main()
