"""The target with a short cache: what a token attends to, and that the target's own cache stays whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tiny_llamagen
import torch
from batch_runs import run
from tiny_targets import causal
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.kv_cache import WindowSlots
from mmspec.decoding.layout import Layout
from mmspec.decoding.loop import RunningBatch
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.target import EarlyExit
from mmspec.drafters.shared_cache import SharedCacheRunner
from mmspec.recipes import parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import dense
from mmspec.testing.toys import ToyTarget
from mmspec.vision.llamagen.target import LlamaGenTarget

N, RECENT = 16, 3


def llamagen() -> LlamaGenTarget:
    torch.manual_seed(0)  # for the unconditional embedding
    gpt = tiny_llamagen.tiny(grid_size=4)
    condition = torch.randn(2, tiny_llamagen.T, tiny_llamagen.C, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, tiny_llamagen.T)
    mask[0, :2] = 0
    return LlamaGenTarget(gpt, condition, gpt.unconditional(2), mask, slack=24)


def hide_old(target: Any) -> None:
    """Lets a target hide all but the prompt and the last tokens in every call, without leaving slots unread."""
    if isinstance(target, LlamaGenTarget):
        slot, key = torch.arange(target.capacity)[:, None], torch.arange(target.capacity)
        target._causal[(key >= target._slots) & (key <= slot - RECENT)] = -torch.inf
        return
    whole = target._causal_mask

    def short(slots: Tensor, end: int, dtype: torch.dtype) -> Tensor:
        prompt = torch.from_numpy(target._prompt)[0]
        key = torch.arange(end)
        old = (key >= prompt) & (key <= slots[..., None] - RECENT)
        return whole(slots, end, dtype).masked_fill(old[:, None], torch.finfo(dtype).min)

    target._causal_mask = short


@pytest.mark.parametrize("make", [llamagen, causal])
@pytest.mark.parametrize("at", [[9, 9], [10, 7]])
def test_a_token_attends_to_the_prompt_and_the_last_tokens(make: Callable[[], Any], at: list[int]) -> None:
    x = torch.randint(tiny_llamagen.V, (2, N), generator=torch.Generator().manual_seed(3))
    place, read = np.array(at), list[int]()
    with torch.inference_mode():
        targets = make(), make()
        for target in targets:
            target.prefill()
            target.forward(x, np.array([0, 0]))
        window = torch.stack([x[row, n : n + 2] for row, n in enumerate(at)])
        full = targets[1].forward(window, place)
        hide_old(targets[1])
        expected = targets[1].forward(window, place)
        write = WindowSlots.write

        def recorded(*arguments: Any) -> Tensor:
            keys: Tensor = write(*arguments)
            read.append(int(keys.shape[2]))
            return keys

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(WindowSlots, "write", recorded)
            found = targets[0].forward(window, place, EarlyExit(targets[0].layers, True, RECENT))
    for ours, theirs, whole in zip(found, expected, full, strict=True):
        if ours is not None and theirs is not None and whole is not None:
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
            assert not torch.allclose(ours, whole, atol=1e-3)
    # The prompt, the last tokens before the first slot of any row, and the slots up to the last one.
    prompt = targets[0].slot(np.zeros(2, dtype=np.int64)).max()
    assert set(read) == {prompt + RECENT - 1 + max(at) - min(at) + 2}


def greedy(make: Callable[[], Any], recipe: str) -> Tensor:
    settings = [SamplingParams(temperature=0, guidance_scale=2.0)] * 2
    return run(make(), parse(recipe), Layout(N, width=4), settings, [1, 2], DraftResources()).tokens


@pytest.mark.parametrize("recipe", ["short-cache:window=4,recent=2", "cascade:window=5,inner=3,recent=2"])
@pytest.mark.parametrize("make", [llamagen, causal])
def test_the_targets_cache_stays_whole(make: Callable[[], Any], recipe: str) -> None:
    assert torch.equal(greedy(make, recipe), greedy(make, "plain"))


def test_reading_a_verified_token_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that shares the cache may not read tokens that the target does not read after it."""

    def root(self: SharedCacheRunner, state: BatchState) -> Tensor:
        count = min(4, int(state.length.min()))
        logits = self._model.forward(state.last(count), state.length - count)
        return dense(self._sampler(logits, Numbers(state.positions(1) - np.arange(count)[::-1])))[:, -1:]

    monkeypatch.setattr(SharedCacheRunner, "root", root)
    assert not torch.equal(greedy(llamagen, "short-cache:window=4,recent=2"), greedy(llamagen, "plain"))


@pytest.mark.parametrize("steps", [0, 3])
def test_the_small_model_of_a_cascade_reads_every_token(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a gap in its cache it would draft what depends on which rows are in the batch."""
    reached = np.zeros(0, dtype=np.int64)

    class Small(ToyTarget):
        def forward(self, tokens: Tensor, at: Any, early_exit: EarlyExit | None = None) -> Logits:
            nonlocal reached
            assert (at <= reached).all()
            reached = at + tokens.shape[1]
            return super().forward(tokens, at, early_exit)

    start = RunningBatch.start

    def start_later(batch: RunningBatch) -> bool:
        batch.first_tokens += steps
        return start(batch)

    monkeypatch.setattr(RunningBatch, "start", start_later)
    resources = DraftResources(draft_model=lambda: Small(1, 2, N, 5))
    for seed in range(12):
        reached = np.zeros(1, dtype=np.int64)
        recipe = parse("cascade:window=5,inner=2")
        run(ToyTarget(1, 2, N, 0), recipe, Layout(N), [SamplingParams()], [seed], resources)
