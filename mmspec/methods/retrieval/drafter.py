"""Retrieval: drafts that continued the longest similar context, in a datastore or earlier in the same row.

REST (He et al. 2023, arXiv 2311.08252) and RASD (Quan et al. 2025, arXiv 2503.03434) search a datastore for the longest
suffix of the text so far; Lookahead (Zhao et al. 2023, arXiv 2312.12728) adds what has been generated to it. Here the
datastore is a set of sequences of the same model, and a row searches its own tokens too, so that its store grows while
it decodes and does not depend on other rows. In images a context is not the tokens before, but the neighbors above and
to the left. The most frequent token after the longest known context is drafted. It was not sampled, so that its q is
one-hot and decoding is exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.errors import ArgumentError, ModelError
from mmspec.methods.retrieval.head import ContextIndex, Datastore, Tokens, neighbor_distances
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.probs import Probs
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import WindowRNG


class RetrievalDrafter:
    """Drafts the tokens that followed similar contexts; a `mmspec.decoding.drafter.Drafter`.

    The search runs on the host, which waits for the tokens of the last window.

    Args:
        index: The positions of the datastore; None to search the row's own tokens only.
        width: Tokens per line of an image; None for streams.
    """

    calls = 0

    def __init__(self, index: ContextIndex | None, width: int | None) -> None:
        self._index = index
        self._distances = np.array(neighbor_distances(width))
        self._width = width
        self._p: Probs | None = None  # the latest target distributions, of which drafts take the form
        self._window: Numbers | None = None  # the next window, see `host_arrays`

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        self._p = verdict.p

    def host_arrays(self, state: BatchState, count: int, iteration: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """The last token and the drafts of each row, host int64 [B, 1 + count]; see `UploadsWithWindow`."""
        return [self._windows(state, count)]

    def _windows(self, state: BatchState, count: int) -> NDArray[np.int64]:
        batch, reach = len(state.ids), int(self._distances.max())
        history = np.full((batch, reach + int(state.length.max())), -1)
        if state.device.type == "cpu":
            history[:, reach:] = state.at(np.tile(np.arange(history.shape[1] - reach), (batch, 1))).numpy()
        else:  # from the second window on without waiting for the device
            known = state.on_host()
            for row, tokens in zip(history, (known[i] for i in state.ids), strict=True):
                row[reach : reach + len(tokens)] = tokens
        found: dict[bytes, Tokens] = {}  # rows with the same tokens so far are continued once
        for row, length in zip(history, state.length, strict=True):
            before = row[: reach + length]
            if (key := before.tobytes()) not in found:
                found[key] = self._continue(before, count)
        ends = zip(history, reach + state.length, strict=True)
        return np.stack([np.append(row[end - 1], found[row[:end].tobytes()]) for row, end in ends])

    def take_arrays(self, arrays: Sequence[Numbers]) -> None:
        (self._window,) = arrays

    def propose(self, state: BatchState, count: int, draws: WindowRNG) -> Draft:
        found, self._window = self._window, None
        window = (Numbers(self._windows(state, count)) if found is None else found).on(state.device)
        assert self._p is not None, "every row has a token"
        return Draft(window[:, 1:], state.ops.one_hot(self._p, window[:, 1:]), window)

    def _continue(self, row: Tokens, count: int) -> Tokens:
        """`count` drafts after the tokens of a row, int64 [reach + n], whose first `reach` entries are -1."""
        known, tokens = len(row), np.append(row, np.zeros(count, dtype=np.int64))
        for i in range(known, known + count):
            context = tokens[i - self._distances]
            found, depth = self._earlier(row, context)
            if self._index is not None:
                stored, stored_depth = self._index.find(context)
                if stored_depth >= depth:
                    found, depth = stored, stored_depth
            if depth:
                tokens[i] = np.bincount(found).argmax()
            else:
                above = tokens[i - self._width] if self._width else -1
                tokens[i] = above if above >= 0 else tokens[i - 1]
        return tokens[known:]

    def _earlier(self, row: Tokens, context: Tokens) -> tuple[Tokens, int]:
        """The tokens of a row that follow the longest part of a context that it has, and the length of that part."""
        at, found = np.arange(int(self._distances.max()) + 1, len(row)), np.zeros(0, dtype=np.int64)
        for depth, (distance, token) in enumerate(zip(self._distances, context, strict=True)):
            at = at[row[at - distance] == token]
            if not len(at):
                return found, depth
            found = row[at]
        return found, len(context)


def build(context: DraftingContext) -> RetrievalDrafter:
    """Builds the drafter of the recipe `retrieval`.

    Raises:
        ArgumentError: If the recipe asks for a datastore and the model has none.
        ModelError: If the datastore belongs to another model.
    """
    store, vocab_size = context.resources.heads.get("retrieval"), context.target.vocab_size
    wanted = str(context.recipe.knobs.get("store", "auto"))
    if wanted == "datastore" and store is None:
        raise ArgumentError(
            f"recipe '{context.recipe}' needs a datastore, and this model has none; make one with "
            "`mmspec train-drafter --kind retrieval` and name its folder as drafter"
        )
    if not isinstance(store, Datastore) or wanted == "row":
        return RetrievalDrafter(None, context.layout.width)
    if store.vocab_size != vocab_size:
        raise ModelError(
            f"drafter has a vocabulary of {store.vocab_size} tokens, the model {vocab_size}; they must match"
        )
    return RetrievalDrafter(store.index(context.layout.width), context.layout.width)
