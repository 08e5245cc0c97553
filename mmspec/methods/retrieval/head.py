"""A datastore of token sequences, for drafts by retrieval; see `mmspec.methods.retrieval.drafter`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.errors import ModelError
from mmspec.heads.head import Head, ToySizes

DEPTH = 8  # neighbors of a context

Tokens = NDArray[np.int64]


class ContextIndex:
    """All positions of some sequences, sorted by their contexts, the nearest neighbor first.

    A context is found by binary search, one neighbor after the other, until no position has it: the positions that are
    left are those with the longest common context. It is a suffix array whose letters are the neighbors.

    Args:
        contexts: int64 [P, K], the neighbors of each position, the nearest first; -1 where there is none.
        tokens: int64 [P], the tokens at the positions.
    """

    def __init__(self, contexts: Tokens, tokens: Tokens) -> None:
        order = np.lexsort(contexts.T[::-1])
        self._columns = np.ascontiguousarray(contexts[order].T)
        self._tokens = tokens[order]

    def find(self, context: Tokens) -> tuple[Tokens, int]:
        """The tokens that follow the longest known part of a context, int64 [n], and the length of that part."""
        low, high = 0, len(self._tokens)
        for depth, token in enumerate(context):
            column = self._columns[depth, low:high]
            first, last = column.searchsorted([token, token + 1])
            if first == last:
                return self._tokens[low:high], depth
            low, high = low + int(first), low + int(last)
        return self._tokens[low:high], len(context)


class Datastore(Head):
    """Token sequences of a model.

    Args:
        vocab_size: Size V of the model's vocabulary.
        hidden_size: Width of the model's features, by which a datastore of another model is refused.
        datastore_size: Number of sequences, n.
        datastore_length: Tokens of the longest one, N.

    Attributes:
        tokens: int32 [n, N]; -1 after the end of a sequence.
    """

    kind = "retrieval"

    def __init__(self, vocab_size: int, hidden_size: int, datastore_size: int, datastore_length: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.tokens: Tensor
        self.register_buffer("tokens", torch.full((datastore_size, datastore_length), -1, dtype=torch.int32))
        self._indices: dict[int | None, ContextIndex] = {}

    def index(self, width: int | None) -> ContextIndex:
        """The index of all positions, made once.

        Args:
            width: Tokens per line of an image; None for streams.
        """
        if width not in self._indices:
            tokens = self.tokens.cpu().numpy().astype(np.int64)
            distances = neighbor_distances(width)
            padded = np.pad(tokens, ((0, 0), (max(distances), 0)), constant_values=-1)
            reach = max(distances)
            contexts = [padded[:, reach - d : reach - d + tokens.shape[1]] for d in distances]
            seen = tokens >= 0
            self._indices[width] = ContextIndex(np.stack([c[seen] for c in contexts], axis=1), tokens[seen])
        return self._indices[width]

    @classmethod
    def toy(cls, sizes: ToySizes) -> Datastore:
        store = cls(sizes.vocab_size, sizes.hidden_size, 6, 12)
        store.tokens.copy_(torch.randint(store.vocab_size, store.tokens.shape))
        return store

    def check_saved(self, folder: str, tensors: Mapping[str, Tensor]) -> None:
        if bool((tensors["tokens"] >= self.vocab_size).any()):
            raise ModelError(f"drafter {folder!r} holds tokens outside of its vocabulary of {self.vocab_size}")


def neighbor_distances(width: int | None) -> tuple[int, ...]:
    """How far back the neighbors of a position lie, the nearest one first.

    In an image of `width` tokens per line they are left, above, above right, above left, and those next to them; in a
    stream the tokens before.
    """
    if width is None or width < 4:
        return tuple(range(1, DEPTH + 1))
    return (1, width, width - 1, width + 1, 2, 2 * width, width - 2, width + 2)
