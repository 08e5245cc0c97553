"""Prints what windows cost outside of the model, on a device that counts: `python window_counts.py`, as JSON.

By recipe and batch, one entry for each window: its rows, whether rows have just left, the width is new or a call was
captured, the calls of a draft model, and its launches, uploads and waits.
"""

from __future__ import annotations

import json
import os
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
from counted_device import DEVICE, CountedTarget, counted_device

from mmspec.codebook import Codebook
from mmspec.decoding.batch import BatchState
from mmspec.decoding.cuda_graphs import CUDAGraphTarget
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.drafters.ngram import NGramTable
from mmspec.engine import run
from mmspec.recipes import parse
from mmspec.sampling.constraints import Constraint
from mmspec.sampling.params import SamplingParams
from mmspec.setup_work import setups

VOCAB, LINE = 12, 6
RECIPES = [
    "scd:window=6",
    "sjd:window=6,start=left",
    "scd:window=6,coupling=gumbel",
    "table:window=6",
    "gsd:window=6,distance=0.0",
    "lantern:window=6,delta=0.1,k=3",
    "beta:window=6,beta=0.3",
    "top-m:window=6,m=2",
    "typical:window=6",
    "fallback:window=6",
    "pcg:window=6,size=4,theta=0.98",
    "draft:window=4",
]


def windows(recipe: str, rows: int, length: int) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """What each window of a decode costs, and the tokens of the first rows."""
    torch.manual_seed(0)
    found: list[dict[str, Any]] = []
    table, vectors = torch.randint(0, VOCAB, (VOCAB + 1, VOCAB)), torch.rand(VOCAB, 3)
    kinds = torch.arange(length) // LINE % 2
    allowed = torch.ones(2, VOCAB, dtype=torch.bool)
    allowed[1, :2] = False
    with counted_device() as counted:
        drafting: list[int] = []

        def draft_model() -> CUDAGraphTarget:
            smaller: Any = CountedTarget(counted, rows, VOCAB, length, guided=False)
            own = smaller.read

            def read(*inputs: Any) -> Any:
                drafting.append(1)
                return own(*inputs)

            smaller.read = read
            return CUDAGraphTarget(smaller)

        resources = DraftResources(
            table=NGramTable(table.to(DEVICE)),
            codebook=lambda: Codebook(vectors),
            draft_model=draft_model,
        )
        layout = Layout(length, LINE, Constraint(kinds.to(DEVICE), allowed.to(DEVICE)), eos=frozenset({VOCAB - 1}))
        model: Any = CountedTarget(counted, rows, VOCAB, length, guided=True)
        target = CUDAGraphTarget(model)
        begin, commit = BatchState.window, BatchState.commit
        shape: list[tuple[int, int]] = [(0, 0)]
        before = [0, 0]  # captures, and calls of the draft model

        def beginning(state: BatchState, width: int, *rest: Any) -> Any:
            counted.clear()
            now = len(state.ids), width
            shape.append(now)
            before[:] = setups(), len(drafting)
            return begin(state, width, *rest)

        def committed(state: BatchState, *rest: Any) -> Any:
            gained = commit(state, *rest)
            found.append({
                "rows": len(state.ids), "new": shape[-1] != shape[-2] or setups() != before[0],
                "drafter_calls": len(drafting) - before[1], "launches": sum(counted.launches.values()),
                "uploads": len(counted.uploads), "waits": len(counted.waits), "names": dict(counted.launches),
            })  # fmt: skip
            return gained

        setattr(BatchState, "window", beginning)  # noqa: B010
        setattr(BatchState, "commit", committed)  # noqa: B010
        try:
            params = [SamplingParams(0.9, top_k=5, top_p=0.95, guidance_scale=2.0)] * rows
            out = run(target, parse(recipe), layout, params, range(rows), resources)
        finally:
            setattr(BatchState, "window", begin)  # noqa: B010
            setattr(BatchState, "commit", commit)  # noqa: B010
        tokens = out.tokens.cpu()
    return found, tokens[:4].tolist()


def main() -> None:
    """Prints all cases."""
    torch._C._set_only_lift_cpu_tensors(True)
    cases = {
        f"{recipe} B={rows}": windows(recipe, rows, length)
        for recipe in RECIPES
        for rows, length in ((1, 36), (64, 24))
    }
    print(json.dumps(cases))


if __name__ == "__main__":
    main()
