"""Drafts from an n-gram table whose contexts combine the script's phones with the previous codes.

Drafted tokens mark where phones end, so the phone of every drafted position is known and drafts continue through
several phones. A draft is a deterministic function of the tokens before it: its q is one-hot and the test accepts it
with probability p(x), so decoding stays exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.audio.spoken.config import CODES
from mmspec.audio.spoken.target import SpokenTarget
from mmspec.decoding.batch import BatchState
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.probs import dense
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import WindowRNG

Index = NDArray[np.int64]
# Columns of a script's features: the phone, and those one before, one after and two after it.
_VOICE, _PREVIOUS, _PHONE, _NEXT, _SECOND_NEXT = 11, 1, 2, 3, 4
MAX_AGE = 15
_PRIME, _WORD = 0x9E3779B97F4A7C15, 2**64 - 1
_AGE, _LEFT, _SECOND, _THIRD = 0xF, 0x7FF << 4, 0x7FF << 15, 0x7FF << 26  # bits of `pack_tokens`

# The contexts, from the least to the most specific: columns of the script, and bits of the previous tokens.
LEVELS: tuple[tuple[tuple[int, ...], int], ...] = (
    ((_VOICE, _PHONE), 0),
    ((_VOICE, _PHONE), _AGE),
    ((_VOICE, _PHONE, _NEXT), _AGE),
    ((_VOICE, _PHONE), _AGE | _LEFT),
    ((_VOICE, _PHONE, _NEXT), _AGE | _LEFT),
    ((_VOICE, _PHONE), _LEFT | _SECOND),
    ((_VOICE, _PHONE), _AGE | _LEFT | _SECOND),
    ((_VOICE, _PHONE, _NEXT), _AGE | _LEFT | _SECOND),
    ((_VOICE, _PHONE, _NEXT, _PREVIOUS), _AGE | _LEFT | _SECOND),
    ((_VOICE, _PHONE, _NEXT), _AGE | _LEFT | _SECOND | _THIRD),
    ((_VOICE, _PHONE, _NEXT, _PREVIOUS, _SECOND_NEXT), _AGE | _LEFT | _SECOND | _THIRD),
)

Number = TypeVar("Number", bound=Any)  # int, or an array of uint64


def script_keys(features: Index) -> NDArray[np.uint64]:
    """A hash of the script's part of the context for each level and phone, uint64 [levels, J]."""
    hashes = []
    for level, (columns, _) in enumerate(LEVELS):
        number = np.full(len(features), level, dtype=np.uint64)
        for column in columns:
            number = number * 128 + features[:, column].astype(np.uint64)
        number *= _PRIME
        hashes.append(number ^ number >> 29)
    return np.stack(hashes)


def pack_tokens(age: Number, left: Number, second: Number, third: Number) -> Number:
    """The previous tokens' part of the context as one number.

    Args:
        age: Number of tokens of the current phone so far, at most `MAX_AGE`.
        left: The previous code; `CODES` at the start of a sentence.
        second: The code before `left`; `CODES` likewise.
        third: The code before `second`; `CODES` likewise.
    """
    return age | left << 4 | second << 15 | third << 26


def context_key(script_key: Number, context: Number) -> Number:
    """The key of a context, below 2**32.

    Args:
        script_key: One of `script_keys`.
        context: From `pack_tokens`, masked with the bits of the level.
    """
    return ((script_key + context) * _PRIME & _WORD) >> 32


class TextNGramTable:
    """The most probable token of each context. It stores only contexts that improve on less specific ones.

    Args:
        keys: Context keys, int64 [P].
        tokens: Token of each key, int [P].
    """

    def __init__(self, keys: Index, tokens: NDArray[np.integer]) -> None:
        self.keys = keys
        self.tokens = tokens
        self._token: dict[int, int] = dict(zip(keys.tolist(), tokens.tolist(), strict=True))

    @staticmethod
    def count(
        keys: Index, tokens: Index, weights: NDArray[np.float32], min_count: float, min_gain: float
    ) -> TextNGramTable:
        """Builds a table from expected counts.

        Args:
            keys: Context keys of n positions, int64 [levels, n].
            tokens: K tokens of each position, int64 [n, K].
            weights: Probabilities of these tokens, [n, K].
            min_count: Smallest expected count of a stored token in its context.
            min_gain: Smallest increase of the expected number of correct drafts over less specific levels. It excludes
                most contexts, since they predict the same token as a less specific one.
        """
        stored: list[tuple[Index, Index]] = []
        predicted = np.full(len(tokens), -1)  # by the levels so far
        for level in keys:
            contexts, at = np.unique(level, return_inverse=True)
            pairs, which = np.unique(at[:, None] * 2**12 + tokens, return_inverse=True)
            counts = np.bincount(which.ravel(), weights=weights.ravel())
            order = np.lexsort((-counts, pairs >> 12))
            first = order[np.diff(pairs[order] >> 12, prepend=-1) > 0]
            best, count = pairs[first] % 2**12, counts[first]
            correct = np.bincount(at, weights=(weights * (tokens == predicted[:, None])).sum(1))
            better = (count >= min_count) & (count - correct >= min_gain)
            predicted = np.where(better[at], best[at], predicted)
            stored.append((contexts[better], best[better]))
        order = np.argsort(np.concatenate([part for part, _ in stored]), kind="stable")
        return TextNGramTable(*(np.concatenate(parts)[order] for parts in zip(*stored, strict=True)))

    def predict(self, script_keys: Sequence[int], context: int) -> int:
        """The token of the most specific context in the table; token 0 if there is none.

        Args:
            script_keys: Column of `script_keys` of the current phone.
            context: From `pack_tokens`.
        """
        for script_key, mask in zip(reversed(script_keys), _MASKS, strict=True):
            token = self._token.get(context_key(script_key, context & mask))
            if token is not None:
                return token
        return 0


_MASKS = tuple(mask for _, mask in reversed(LEVELS))


class TextNGramDrafter:
    """Continues drafts with tokens of a `TextNGramTable`; see `mmspec.decoding.drafter.ContinuationDrafter`.

    It loops over rows and slots, since a dictionary look-up costs less than any array operation.

    Args:
        target: The target, which tracks the phone of each row.
        features: Features of each row's script, int64 [J, columns].
    """

    ROWS = ("_scripts",)
    calls = 0
    learns = False

    def __init__(self, table: TextNGramTable, target: SpokenTarget, features: Sequence[Index]) -> None:
        self._table = table
        self._target = target
        self._scripts: list[list[list[int]]] = [script_keys(one).T.tolist() for one in features]

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        pass

    def guesses(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
        every = [verdict.p.shape[1]] * len(state.ids)
        return torch.tensor(self._follow(state, verdict.tokens.tolist(), every))

    def _follow(self, state: BatchState, lines: list[list[int]], kept: Sequence[int]) -> list[list[int]]:
        """The table's token at each slot of the lines, in which it replaces those after the kept ones."""
        codes, found = self._target.codes, []
        phones, ages = (part.tolist() for part in self._target.phone_and_age(state.length - 1))
        for script, line, phone, age, (*before, left), first in zip(
            self._scripts, lines, phones, ages, state.last(3).tolist(), kept, strict=True
        ):
            end, guesses = len(script) - 1, []
            third, second = (CODES if token < 0 else token % codes for token in before)
            for j in range(len(line)):
                phone, age = (min(phone + 1, end), 0) if left >= codes else (phone, age + 1)
                code = left % codes
                token = self._table.predict(script[phone], pack_tokens(min(age, MAX_AGE), code, second, third))
                guesses.append(2 * codes if phone == end and token >= codes else token)
                if j >= first:
                    line[j] = guesses[j]
                third, second, left = second, code, line[j]
            found.append(guesses)
        return found

    def extend(self, state: BatchState, draft: Draft, reused: Numbers, draws: WindowRNG) -> Draft:
        count, tokens = draft.tokens.shape[1], draft.tokens.tolist()
        self._follow(state, tokens, reused.host.tolist())
        drafted = torch.tensor(tokens, device=state.device)
        q = torch.zeros_like(dense(draft.q)).scatter_(2, drafted[..., None], 1.0)
        if reused.host.any():
            old = torch.from_numpy(np.arange(count) < reused.host[:, None]).to(state.device)
            q = torch.where(old[..., None], dense(draft.q), q)
        return Draft(drafted, q)
