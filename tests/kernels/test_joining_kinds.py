"""A row with min-p joins a running batch: its drafts are of kernels, and the target distributions are not any more."""

from __future__ import annotations

import os

import pytest
import torch
from every_recipe import short
from poisoned_memory import poisoned_memory

from mmspec.decoding.assembly import build_rule, running_batch
from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.loop import RunningBatch
from mmspec.decoding.rows import join_batches
from mmspec.decoding.stats import Meter
from mmspec.decoding.window_policy import FixedWindow
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.testing.toys import ToyTarget, toy_resources

pytest.importorskip("triton")


V, LENGTH, WARM = 4, 6, SamplingParams(0.9)


def batch_of(recipe: str, seeds: list[int], sampling: SamplingParams) -> RunningBatch:
    rows, parsed, layout = [sampling] * len(seeds), parse(recipe), Layout(LENGTH, 3)
    target, resources = (
        ToyTarget(len(seeds), V, LENGTH, 5),
        toy_resources(len(seeds), V, layout, 5, [WARM] * len(seeds)),
    )
    state, sampler = BatchState(seeds, layout, parsed.window, target.device), layout.sampler(rows, target.device)
    meter, rule = Meter(target.device, len(seeds)), build_rule(parsed, resources)
    policy = FixedWindow(parsed.window)
    return running_batch(target, parsed, rule, sampler, state, rows, resources, policy, meter)


def joined(recipe: str, first: SamplingParams, other: SamplingParams) -> torch.Tensor:
    """The tokens of three rows, the last of which joins after a window."""
    with torch.inference_mode():
        batch, new = batch_of(recipe, [1, 2], first), batch_of(recipe, [3], other)
        batch.start()
        batch.step()
        new.start()
        join_batches(batch, new)
        while batch.step():
            pass
        return batch.state.result().clone()


@pytest.mark.parametrize("recipe", [
    short("draft"), f"{short('scd')},start=left", short("prompt"),
    *(pytest.param(one, marks=pytest.mark.slow) for one in (
        short("stand"), f"{short('scd')},start=model", short("recycle"), short("tree"), short("draft-stop"),
        f"{short('scd')},start=left,refresh=model", short("masked"), short("eagle"),
    )),
])  # fmt: skip
@pytest.mark.parametrize(
    "other",
    [SamplingParams(min_p=0.1), pytest.param(SamplingParams(0.8, top_k=3), marks=pytest.mark.slow)],
    ids=["min-p", "top-k"],
)
def test_rows_that_join(recipe: str, other: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton's interpreter is off")
    monkeypatch.setenv("MMSPEC_KERNELS", "torch")
    theirs = joined(recipe, WARM, other)
    monkeypatch.setenv("MMSPEC_KERNELS", "triton")
    with poisoned_memory():
        assert torch.equal(joined(recipe, WARM, other), theirs)
