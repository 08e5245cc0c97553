"""Retrieval of drafts: the index finds the longest context, and datastores are built, saved and loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from batch_runs import run
from torch import Tensor

from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.target import EarlyExit
from mmspec.errors import ModelError
from mmspec.heads.checkpoint import load_head
from mmspec.methods.retrieval.drafter import RetrievalDrafter
from mmspec.methods.retrieval.head import DEPTH, ContextIndex, Datastore, neighbor_distances
from mmspec.recipes import parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.testing.toys import ToyTarget


def store_of(tokens: Tensor, vocab_size: int = 5) -> Datastore:
    store = Datastore(vocab_size, 16, *tokens.shape)
    store.tokens.copy_(tokens)
    return store


@pytest.mark.parametrize("width", [None, 6])
def test_the_index_finds_the_longest_known_context(width: int | None) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(3, size=(4, 24))
    distances = neighbor_distances(width)
    reach = max(distances)
    padded = np.pad(tokens, ((0, 0), (reach, 0)), constant_values=-1)
    contexts = np.array([[row[i - d] for d in distances] for row in padded for i in range(reach, len(row))])
    index = store_of(torch.from_numpy(tokens), 3).index(width)
    for _ in range(200):
        context = rng.integers(-1, 4, size=DEPTH)
        same = (contexts == context).cumprod(1).sum(1)
        found, depth = index.find(context)
        assert depth == same.max()
        assert sorted(found) == sorted(tokens.flatten()[same >= depth])


def test_what_follows_the_end_of_a_sequence_is_not_found() -> None:
    index = store_of(torch.tensor([[1, 2, 3, -1], [2, 4, -1, -1]])).index(None)
    found, depth = index.find(np.array([3, 2, 1, -1, -1, -1, -1, -1]))
    assert depth == 0 and -1 not in found


def test_a_row_searches_its_own_tokens() -> None:
    """A row that repeats itself is drafted from its own past, without any datastore."""
    drafter = RetrievalDrafter(None, None)
    row = np.array([-1] * DEPTH + [0, 1, 2, 3, 4, 0, 1, 2])
    assert drafter._continue(row, 4).tolist() == [3, 4, 0, 1]


class Counter(ToyTarget):
    """A model that counts up to four and begins again."""

    def logits(self, length: Tensor, number: Tensor, early_exit: EarlyExit | None = None) -> Logits:
        return Logits(torch.nn.functional.one_hot(length % 5, 5).float() * 100, None)

    def forward(self, tokens: Tensor, at: np.ndarray, early_exit: EarlyExit | None = None) -> Logits:
        return self.logits(torch.from_numpy(at)[:, None] + 1 + torch.arange(tokens.shape[1]), tokens)


@pytest.mark.parametrize("known", [True, False])
def test_windows_that_a_store_has_are_accepted(known: bool) -> None:
    heads = {"retrieval": store_of(torch.arange(20)[None] % 5)} if known else {}
    stats = run(
        Counter(2, 5, 4, 0), parse("retrieval:window=6"), Layout(31), [SamplingParams()] * 2, [1, 2],
        DraftResources(heads=heads),
    ).stats  # fmt: skip
    # The first token comes from the prefill. Without a datastore the first round is new.
    assert stats.target_calls == 1 + 5 if known else 6 < stats.target_calls <= 12


def test_a_datastore_is_saved_and_loaded(tmp_path: Path) -> None:
    store = store_of(torch.tensor([[1, 2, 3], [4, 4, -1]]))
    store.save_pretrained(tmp_path)
    again = load_head(tmp_path)
    assert (
        isinstance(again, Datastore) and torch.equal(again.tokens, store.tokens) and again.tokens.dtype == torch.int32
    )
    assert (again.vocab_size, again.hidden_size, again.kind) == (5, 16, "retrieval")


def test_a_datastore_with_tokens_outside_of_its_vocabulary_is_refused(tmp_path: Path) -> None:
    """A draft outside of the vocabulary would end a CUDA process."""
    store_of(torch.tensor([[0, 5]])).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="holds tokens outside of its vocabulary of 5"):
        load_head(tmp_path)


def test_an_index_of_nothing_finds_nothing() -> None:
    index = ContextIndex(np.zeros((0, DEPTH), dtype=np.int64), np.zeros(0, dtype=np.int64))
    assert index.find(np.arange(DEPTH))[1] == 0
