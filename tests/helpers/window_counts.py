"""Prints what windows cost outside of the model, on a device that counts: `python window_counts.py`, as JSON.

By recipe and batch, one entry for each window: whether rows have just left, the width is new or a call was captured;
whether the next call was launched ahead; the calls of a draft model; and its launches, uploads and waits, and how much
the host launched between a wait and the next call of the model while the device had nothing to do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from mmspec.sampling.numbers import Numbers

os.environ["TRITON_INTERPRET"] = "1"

import pytest
import torch
from batch_runs import run
from counted_device import (
    DEVICE,
    CountedBlock,
    CountedEagle,
    CountedGrid,
    CountedHydra,
    CountedKangaroo,
    CountedMedusa,
    CountedTarget,
    counted_device,
)  # fmt: skip
from torch import Tensor

from mmspec.codebook import Codebook
from mmspec.decoding import device_windows
from mmspec.decoding.cuda_graphs import CUDAGraphTarget
from mmspec.decoding.layout import Layout
from mmspec.decoding.loop import RunningBatch
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.stats import Meter
from mmspec.decoding.window_policy import FixedWindow
from mmspec.drafters import draft_model as draft_model_module
from mmspec.drafters.ngram import NGramTable
from mmspec.environment.setup_work import setups
from mmspec.errors import ModelError
from mmspec.methods import pearl
from mmspec.methods.outer import drafter as outer_layers
from mmspec.recipes import parse
from mmspec.sampling.constraints import Constraint
from mmspec.sampling.params import SamplingParams

VOCAB, LINE = 12, 6
RECIPES = [
    "scd:window=6", "sjd:window=6,start=left", "scd:window=6,coupling=gumbel", "table:window=6",
    "gsd:window=6,distance=0.0", "lantern:window=6,delta=0.1,k=3", "beta:window=6,beta=0.3", "top-m:window=6,m=2",
    "typical:window=6", "fallback:window=6", "pcg:window=6,size=4,theta=0.98", "recycle:window=6", "stand:window=6",
    "retrieval:window=6", "draft:window=4", "layer-skip:window=4,layers=1", "scd:window=6,refresh=outer",
    "scd:window=6,refresh=outer,passes=2", "short-cache:window=4,recent=4", "draft-stop:window=4", "pearl:window=4",
    "tree-table:branch=2/1", "tree:branch=2/1", "tree-dynamic:window=7,depth=2,top=3", "tree-sampled:window=6,depth=3",
    "medusa:window=4", "tree-medusa:branch=2/1", "eagle:window=4", "tree-eagle:branch=2/1",
    "eagle-2:window=7,depth=2,top=3", "hydra:window=4", "grid:window=4", "block:window=4", "kangaroo:window=4", "plain",
]  # fmt: skip
ALONE = {"table", "gsd", "beta", "top-m", "fallback", "pcg"}  # with one row only
AHEAD = [
    "scd:window=6", "sjd:window=5,start=random", "plain", "draft:window=4", "layer-skip:window=4,layers=1",
    "scd:window=6,refresh=outer,passes=2", "sjd:window=6,start=left,refresh=outer",
]  # fmt: skip


class Unforeseen(FixedWindow):
    """A policy that takes a plain step in place of every fourth window, and does not say so before."""

    calls = 0

    def choose(self) -> int:
        object.__setattr__(self, "calls", self.calls + 1)
        return self.width if self.calls % 4 else 1


class AtOnce:
    """In place of a thread, which the device does not know: does the work when it is submitted."""

    def __init__(self, *_: object) -> None:
        pass

    def submit(self, work: Callable[[], None]) -> Future[None]:
        done = Future[None]()
        work()
        done.set_result(None)
        return done


def windows(
    recipe: str,
    rows: int,
    length: int,
    ahead: bool = True,
    failing: bool = False,
    misread: bool = False,
    misplaced: bool = False,
    unforeseen: bool = False,
) -> dict[str, Any]:
    """What each window and each plain step of a decode costs, and the tokens of the first rows.

    Args:
        recipe: The recipe.
        rows: B.
        length: Of the sequence.
        ahead: Whether calls may be launched before the host has read what the call before has accepted.
        failing: Whether every third of these fails; all tokens are then read after each window.
        misread: Whether drafts that are made ahead follow the token before the last one, which is wrong.
        misplaced: Whether outer layers read a window again where the next one begins, which is wrong.
        unforeseen: Whether plain steps take the place of windows whose calls have been launched.
    """
    torch.manual_seed(0)
    found: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    reads: list[int] = []
    kept: list[bool] = []
    table, vectors = torch.randint(0, VOCAB, (VOCAB + 1, VOCAB)), torch.rand(VOCAB, 3)
    kinds = torch.arange(length) // LINE % 2
    allowed = torch.ones(2, VOCAB, dtype=torch.bool)
    allowed[1, :2] = False
    with counted_device() as counted:
        drafting: list[int] = []

        def draft_model() -> CUDAGraphTarget:
            smaller: Any = CountedTarget(counted, rows, VOCAB, length, guided=False)
            smaller.read = noting(smaller.read)
            return CUDAGraphTarget(smaller)

        def noting(read: Callable[..., Any], exits: bool = False) -> Callable[..., Any]:
            def noted(*inputs: Any, states: Tensor | None = None) -> Any:
                if not exits or inputs[-1] is not None:
                    drafting.append(1)
                return read(*inputs) if states is None else read(*inputs, states=states)

            return noted

        resources = DraftResources(
            table=NGramTable(table.to(DEVICE)),
            codebook=lambda: Codebook(vectors),
            draft_model=draft_model,
            heads={
                "eagle": CountedEagle(VOCAB),
                "medusa": CountedMedusa(VOCAB),
                "hydra": CountedHydra(VOCAB),
                "grid": CountedGrid(VOCAB, LINE),
                "block": CountedBlock(VOCAB),
                "kangaroo": CountedKangaroo(VOCAB),
            },
        )
        layout = Layout(length, LINE, Constraint(kinds.to(DEVICE), allowed.to(DEVICE)), eos=frozenset({VOCAB - 1}))
        model: Any = CountedTarget(counted, rows, VOCAB, length, guided=True)
        model.read = noting(model.read, exits=True)
        target = CUDAGraphTarget(model)
        step, count = RunningBatch.step, Meter.count
        widths: list[int] = []
        shape: list[tuple[int, int]] = [(0, 0)]

        def costs() -> dict[str, Any]:
            numbers = {"uploads": len(counted.uploads), "waits": len(counted.waits), "idle": counted.idle}
            launches = sum(counted.launches.values())
            return {**numbers, "launches": launches, "names": dict(counted.launches)}

        def counting(meter: Meter, verdict: Any, *rest: Any) -> None:
            width = verdict.p.shape[1]
            count(meter, verdict, *rest)
            if width > 1:
                widths.append(width)
                return
            rows = len(rest[-1])
            steps.append({"rows": rows, "new": not steps or rows != steps[-1]["rows"], **costs()})
            counted.clear()

        def stepping(batch: RunningBatch) -> bool:
            counted.clear()
            rows, captured, drafted, known = len(batch.state.ids), setups(), len(drafting), len(widths)
            running = step(batch)
            if failing:
                before = len(counted.waits)
                copies, state = batch.state.on_host(), batch.state
                reads.append(len(counted.waits) - before)
                counted.waits[before:] = []
                there = state._tokens.cpu()
                kept.append(all(torch.equal(one, there[row, : len(one)]) for row, one in enumerate(copies)))
            if len(widths) > known:
                shape.append((rows, widths[-1]))
                new = shape[-1] != shape[-2] or setups() != captured or len(batch.state.ids) != rows
                is_ahead = getattr(batch._windows, "_next", None) is not None
                found.append({"new": new, "ahead": is_ahead, "drafter_calls": len(drafting) - drafted, **costs()})
            return running

        own, asked = CUDAGraphTarget.forward_ahead, [0]

        def refusing(target: CUDAGraphTarget, *window: Any) -> Any:
            asked[0] += 1
            return None if asked[0] % 3 == 0 else own(target, *window)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pearl, "ThreadPoolExecutor", AtOnce)
            patch.setattr(RunningBatch, "step", stepping)
            patch.setattr(Meter, "count", counting)
            if not ahead:
                patch.setattr(device_windows, "parts_ahead", lambda *_: None)
            if unforeseen:
                patch.setattr("mmspec.decoding.assembly.FixedWindow", Unforeseen)
            if failing:
                patch.setattr(CUDAGraphTarget, "forward_ahead", refusing)
            if misplaced:
                reread = outer_layers._reread
                patch.setattr(outer_layers, "_reread", lambda verdict, x, now, draws: (
                    reread(verdict, x, now, draws)[0], now.before,
                ))  # fmt: skip
            if misread:
                newest = draft_model_module._slot_ahead
                patch.setattr(
                    draft_model_module,
                    "_slot_ahead",
                    lambda model, x, at, slot: newest(model, x, at, Numbers(slot.host * 0)),
                )
            params = [SamplingParams(0.9, top_k=5, top_p=0.95, guidance_scale=2.0)] * rows
            out = run(target, parse(recipe), layout, params, range(rows), resources)
        tokens = out.tokens.cpu()
    return {
        "windows": found,
        "steps": steps,
        "tokens": tokens[:8].tolist(),
        "target_calls": out.stats.target_calls,
        "reads": reads,
        "kept": kept,
    }


def broken(recipe: str, slot: int) -> dict[str, Any]:
    """What happens if the logits of a model are NaN from a slot on: the lowest token that it reads, and the error.

    Args:
        recipe: The recipe.
        slot: The slot.
    """
    with counted_device() as counted:
        model: Any = CountedTarget(counted, 2, VOCAB, 36, guided=True)
        model.broken_from, error = slot, ""
        table = torch.randint(0, VOCAB, (VOCAB + 1, VOCAB), generator=torch.Generator().manual_seed(0))
        resources = DraftResources(table=NGramTable(table.to(DEVICE)))
        try:
            run(CUDAGraphTarget(model), parse(recipe), Layout(36, LINE), [SamplingParams()] * 2, range(2), resources)
        except ModelError as raised:
            error = str(raised)
        return {"lowest": model.lowest, "error": error}


def main() -> None:
    """Prints all cases."""
    torch._C._set_only_lift_cpu_tensors(True)
    cases = {
        f"{recipe} B={rows}": windows(recipe, rows, length)
        for recipe in RECIPES
        for rows, length in ((1, 36), (64, 24))
        if rows == 1 or recipe.split(":")[0] not in ALONE
    }
    for recipe in AHEAD:
        for ahead, name in ((True, "ahead"), (False, "after")):
            cases[f"{recipe} {name}"] = windows(recipe, 4, 30, ahead)
            if recipe != "plain":
                cases[f"{recipe} {name} unforeseen"] = windows(recipe, 4, 30, ahead, unforeseen=True)
    cases[f"{AHEAD[5]} misplaced"] = windows(AHEAD[5], 4, 30, misplaced=True)
    cases[f"{AHEAD[3]} misread"] = windows(AHEAD[3], 4, 30, misread=True)
    for recipe in AHEAD[:1] + AHEAD[2:]:
        cases[f"{recipe} failing"] = windows(recipe, 4, 30, failing=True)
    for recipe in ("plain", "scd:window=6", "table:window=6"):
        cases[f"{recipe} broken"] = broken(recipe, 14)
    print(json.dumps(cases))


if __name__ == "__main__":
    main()
