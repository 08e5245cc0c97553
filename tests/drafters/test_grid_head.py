"""Grid heads: the features that they read, and the models that they fit; `test_grid` checks exactness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batch_runs import run
from torch import Tensor

from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.errors import ArgumentError, ModelError
from mmspec.heads.checkpoint import load_head
from mmspec.methods.grid.drafter import GridRunner
from mmspec.methods.grid.head import GridHead
from mmspec.recipes import parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.testing.toys import FEATURES, ToyTarget
from mmspec.training.objectives import teacher_features

V, WIDTH = 3, 3
LAYOUT = Layout(length=3 * WIDTH, width=WIDTH)


def tiny_head() -> GridHead:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = GridHead(V, FEATURES, 24, WIDTH)
        for p in head.parameters():
            torch.nn.init.normal_(p, std=0.4)
    return head.eval()


@pytest.mark.parametrize("recipe", ["grid:window=5", "scd:window=4,start=grid"])
@torch.no_grad()
def test_a_draft_reads_the_features_around_the_token_above(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head, recorded = tiny_head(), list[tuple[Tensor, int, int, Tensor]]()
    correct, read, states = GridRunner._logits, GridRunner._read, list[Any]()

    def begin(self: GridRunner, state: Any) -> None:
        states.append(state)
        read(self, state)

    def record(self: GridRunner, left: Tensor, depth: Any) -> Logits:
        state = states[-1]
        logits, count = correct(self, left, depth), int(state.length[0])
        for i in range(left.shape[1]):
            recorded.append((state.at(np.arange(count)[None])[0], int(left[0, i]), int(depth[0, i]), logits.cond[0, i]))
        return logits

    monkeypatch.setattr(GridRunner, "_read", begin)
    monkeypatch.setattr(GridRunner, "_logits", record)
    for seed in range(6):
        target, resources = ToyTarget(1, V, 9, 0), DraftResources(heads={"grid": head})
        run(target, parse(recipe), LAYOUT, [SamplingParams()], [seed], resources)
    seen = set()
    for tokens, left, depth, logits in recorded:
        count = len(tokens)
        if count < 2 or count + depth >= LAYOUT.length:
            continue
        known = teacher_features(ToyTarget(1, V, 9, 0), tokens[None])[0]  # what tokens 0 to count - 1 were sampled from
        above = count + depth - WIDTH + 1
        found = [known[n] if 1 <= n < count or n == count - 1 else torch.zeros(FEATURES) for n in (above, above + 1)]
        predicted = head(known[-1], *found, torch.tensor(left), torch.tensor(depth))
        assert (predicted[:V] - logits).abs().max() < 1e-4
        seen.add((count, depth))
    assert len(seen) > 1


def test_heads_for_other_images_and_streams_are_refused(tmp_path: Path) -> None:
    resources = DraftResources(heads={"grid": tiny_head()})
    with pytest.raises(ModelError, match="drafter is for lines of 3 tokens, and this model's have 2"):
        run(ToyTarget(1, V, 6, 0), parse("grid"), Layout(6, 2), [SamplingParams()], [0], resources)
    with pytest.raises(ArgumentError, match="grid_width=0 is not allowed"):
        GridHead(V, FEATURES, 24, 0)
    tiny_head().save_pretrained(tmp_path)
    assert isinstance(load_head(tmp_path), GridHead)
