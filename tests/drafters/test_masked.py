"""A masked model drafts: its tokens come from the distributions it states; greedy rows, rows in other batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from batch_runs import run
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.to_end import Decoded
from mmspec.errors import ArgumentError
from mmspec.methods.masked import MaskedDrafter, MaskedToy
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import dense
from mmspec.testing.toys import ToyTarget, toy_resources

LAYOUT, VOCAB = Layout(length=6, width=2), 4


def decode(recipe: str, seeds: Sequence[int], samplings: Sequence[SamplingParams]) -> Decoded:
    resources = toy_resources(len(seeds), VOCAB, LAYOUT, 0, [])
    guided = any(sampling.guidance_scale != 1 for sampling in samplings)
    return run(ToyTarget(len(seeds), VOCAB, 6, 0, guided), parse(recipe), LAYOUT, samplings, seeds, resources)


def test_tokens_are_samples_of_q() -> None:
    """20,000 rows with the same last token; a frequency is within 0.02 of q but once in a million."""
    rows, device = 20_000, torch.device("cpu")
    state = BatchState(range(rows), LAYOUT, 4, device)
    state.commit(torch.ones(rows, 1, dtype=torch.int64), np.zeros(rows, dtype=np.int64))
    sampling = [SamplingParams(0.8, top_p=0.9)] * rows
    drafter = MaskedDrafter(MaskedToy(VOCAB, LAYOUT, 1), LAYOUT.sampler(sampling, device), device)
    draft = drafter.propose(state, 3, state.window(4, np.zeros((rows, 1), dtype=np.int64)))
    assert draft.q.shape == (rows, 3, VOCAB) and drafter.calls == 1
    counts = torch.nn.functional.one_hot(draft.tokens, VOCAB).float().mean(0)
    q = dense(draft.q)
    assert (q[0, 0] != q[0, 1]).any()
    torch.testing.assert_close(counts, draft.q[0], atol=0.02, rtol=0)
    pairs = torch.stack([(draft.tokens[:, 0] == a) & (draft.tokens[:, 1] == b) for a in range(4) for b in range(4)], 1)
    expected: Tensor = (q[0, 0][:, None] * q[0, 1]).flatten()
    torch.testing.assert_close(pairs.float().mean(0), expected, atol=0.02, rtol=0)


def test_rows_do_not_depend_on_their_batch_and_greedy_rows_are_plain() -> None:
    settings = [SamplingParams(), SamplingParams(0.7, top_p=0.8), SamplingParams(guidance_scale=2.0), SamplingParams(0)]
    seeds = [11, -5, 8, 3]
    together = decode("masked:window=3", seeds, settings)
    order = [2, 3, 0, 1]
    other = decode("masked:window=3", [seeds[i] for i in order], [settings[i] for i in order])
    assert torch.equal(other.tokens, together.tokens[order])
    assert torch.equal(together.tokens[3:], decode("plain", [3], settings[3:]).tokens)
    assert together.stats.draft_calls > 0


def test_a_model_without_a_masked_model_is_refused() -> None:
    resources = replace(toy_resources(1, VOCAB, LAYOUT, 0, []), models={})
    with pytest.raises(ArgumentError, match="recipe 'masked' needs a masked model of the same codes as draft_model"):
        run(ToyTarget(1, VOCAB, 6, 0), parse("masked"), LAYOUT, [SamplingParams()], [0], resources)
