"""The adapter after an early exit: what it reads, in decoding as in training, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from batch_runs import run
from tiny_targets import causal, llamagen
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.target import EarlyExit
from mmspec.methods.kangaroo.drafter import KangarooRunner
from mmspec.methods.kangaroo.head import ExitAdapter
from mmspec.recipes import parse
from mmspec.sampling.logits import split_cfg
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import dense
from mmspec.sampling.sampler import TokenSampler

N, SETTING = 9, SamplingParams(guidance_scale=1.5)


def adapter_for(target: Any) -> ExitAdapter:
    target.prefill()
    torch.manual_seed(2)
    adapter = ExitAdapter(target.vocab_size, target.features().shape[-1], 24, 2, 1)
    for p in adapter.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return adapter.eval()


@pytest.mark.parametrize("make", [llamagen, causal])
@torch.no_grad()
def test_an_adapter_reads_the_same_in_decoding_as_in_training(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every window, rejected drafts and rows of other lengths included."""
    adapter, calls = adapter_for(make()), list[tuple[list[Tensor], Tensor]]()

    class Recorded(KangarooRunner):
        def root(self, state: BatchState) -> Tensor:
            rows = [state.at(np.arange(n)[None].repeat(len(state.ids), 0))[b] for b, n in enumerate(state.length)]
            calls.append((rows, dense(super().root(state))))
            return calls[-1][1]

    monkeypatch.setattr("mmspec.methods.kangaroo.drafter.KangarooRunner", Recorded)
    resources = DraftResources(heads={"kangaroo": adapter})
    run(make(), parse("kangaroo:window=3"), Layout(N), [SETTING] * 2, [1, 2], resources)
    sampler = TokenSampler([SETTING] * 2, None, torch.device("cpu"))
    assert len(calls) > 2
    for rows, q in calls[:4]:
        if len(rows) < 2:
            continue
        for row, tokens in enumerate(rows):
            target = make()
            target.prefill()
            at = np.zeros(2, dtype=np.int64)
            logits = target.forward(tokens[None].repeat(2, 1), at, EarlyExit(1, guided=True))
            torch.testing.assert_close(split_cfg(target.head(target.exit_features()), True).cond, logits.cond)
            predicted = split_cfg(target.head(adapter(target.exit_features())[:, -1:]), True)
            expected = sampler(predicted, Numbers(np.full((2, 1), len(tokens))))
            torch.testing.assert_close(expected[row], q[row], atol=1e-4, rtol=1e-3)
