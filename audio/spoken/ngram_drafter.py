"""Drafts from a table over text and codes: what was said most often at such a place of such a phone.

An n-gram table over a joint context. It knows the phone of every drafted position, since the drafts themselves tell
where phones end; so it goes on through several phones. A guess is a function of what lies before it and tested with
p(x), so that it is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from mmspec.audio.spoken.config import CODES
from mmspec.audio.spoken.target import SpokenTarget
from mmspec.decoding.batch import BatchState
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import WindowRNG

Index = NDArray[np.int64]
_VOICE, _BEFORE, _PHONE, _AFTER, _LATER = 11, 1, 2, 3, 4  # columns of a script's features
OLDEST = 15
_PRIME, _WORD = 0x9E3779B97F4A7C15, 2**64 - 1
_AGE, _LEFT, _SECOND, _THIRD = 0xF, 0x7FF << 4, 0x7FF << 15, 0x7FF << 26  # of what `tell` packs

# What a guess is looked up by, from what tells least to what tells most: of the script, and of the tokens before.
LEVELS: tuple[tuple[tuple[int, ...], int], ...] = (
    ((_VOICE, _PHONE), 0),
    ((_VOICE, _PHONE), _AGE),
    ((_VOICE, _PHONE, _AFTER), _AGE),
    ((_VOICE, _PHONE), _AGE | _LEFT),
    ((_VOICE, _PHONE, _AFTER), _AGE | _LEFT),
    ((_VOICE, _PHONE), _LEFT | _SECOND),
    ((_VOICE, _PHONE), _AGE | _LEFT | _SECOND),
    ((_VOICE, _PHONE, _AFTER), _AGE | _LEFT | _SECOND),
    ((_VOICE, _PHONE, _AFTER, _BEFORE), _AGE | _LEFT | _SECOND),
    ((_VOICE, _PHONE, _AFTER), _AGE | _LEFT | _SECOND | _THIRD),
    ((_VOICE, _PHONE, _AFTER, _BEFORE, _LATER), _AGE | _LEFT | _SECOND | _THIRD),
)

Number = TypeVar("Number", bound=Any)  # int, or an array of uint64


def places(features: Index) -> NDArray[np.uint64]:
    """A number for each level and each phone of a script, uint64 [levels, J]."""
    found = []
    for level, (columns, _) in enumerate(LEVELS):
        number = np.full(len(features), level, dtype=np.uint64)
        for column in columns:
            number = number * 128 + features[:, column].astype(np.uint64)
        number *= _PRIME
        found.append(number ^ number >> 29)
    return np.stack(found)


def tell(old: Number, left: Number, second: Number, third: Number) -> Number:
    """What tokens tell, as one number.

    Args:
        old: Tokens of the phone before, at most `OLDEST`.
        left: The code before; `CODES` where there is none.
        second: The one before that, likewise.
        third: The one before that, likewise.
    """
    return old | left << 4 | second << 15 | third << 26


def key(place: Number, told: Number) -> Number:
    """What a guess is looked up by, below 2**32: one of `places`, and what its level asks of `told`."""
    return ((place + told) * _PRIME & _WORD) >> 32


class TextNGramTable:
    """The likeliest token in each context, of contexts that know better than those that tell less.

    Args:
        keys: int64 [P].
        tokens: int [P].
    """

    def __init__(self, keys: Index, tokens: NDArray[np.integer]) -> None:
        self.keys = keys
        self.tokens = tokens
        self._found: dict[int, int] = dict(zip(keys.tolist(), tokens.tolist(), strict=True))

    @staticmethod
    def count(keys: Index, tokens: Index, weights: NDArray[np.float32], least: float, gain: float) -> TextNGramTable:
        """Counts contexts.

        Args:
            keys: int64 [levels, n].
            tokens: int64 [n, K], what may come there.
            weights: [n, K], how likely.
            least: Times that a token must be expected in a context in all.
            gain: Times that it must be right more often than the guess of the levels before, so that most contexts,
                which say what is known already, are left out.
        """
        kept: list[tuple[Index, Index]] = []
        known = np.full(len(tokens), -1)
        for level in keys:
            contexts, at = np.unique(level, return_inverse=True)
            pairs, which = np.unique(at[:, None] * 2**12 + tokens, return_inverse=True)
            counts = np.bincount(which.ravel(), weights=weights.ravel())
            order = np.lexsort((-counts, pairs >> 12))
            first = order[np.diff(pairs[order] >> 12, prepend=-1) > 0]
            best, most = pairs[first] % 2**12, counts[first]
            right = np.bincount(at, weights=(weights * (tokens == known[:, None])).sum(1))
            better = (most >= least) & (most - right >= gain)
            known = np.where(better[at], best[at], known)
            kept.append((contexts[better], best[better]))
        order = np.argsort(np.concatenate([part for part, _ in kept]), kind="stable")
        return TextNGramTable(*(np.concatenate(parts)[order] for parts in zip(*kept, strict=True)))

    def guess(self, places: Sequence[int], told: int) -> int:
        """The token of the most telling context that is known; token 0 where none is.

        Args:
            places: Of `places`, of one phone.
            told: Of `tell`.
        """
        for place, mask in zip(reversed(places), _MASKS, strict=True):
            token = self._found.get(key(place, told & mask))
            if token is not None:
                return token
        return 0


_MASKS = tuple(mask for _, mask in reversed(LEVELS))


class TextNGramDrafter:
    """Puts guesses of a `TextNGramTable` after drafts; see `mmspec.drafters.jacobi.ContinuationDrafter`.

    Rows and slots are gone through one by one: a look-up in a dictionary costs less than any operation on arrays.

    Args:
        table: The guesses.
        target: Knows the phone that each row is in.
        features: int64 [J, columns] of each row's script.
    """

    calls = 0

    def __init__(self, table: TextNGramTable, target: SpokenTarget, features: Sequence[Index]) -> None:
        self._table = table
        self._target = target
        self._scripts: list[list[list[int]]] = [places(one).T.tolist() for one in features]

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        pass

    def select_rows(self, row_ids: list[int]) -> None:
        self._scripts = [self._scripts[i] for i in row_ids]

    def extend(self, state: BatchState, draft: Draft, reused: Index, draws: WindowRNG) -> Draft:
        count, codes = draft.tokens.shape[1], self._target.codes
        phones, ages = (part.tolist() for part in self._target.where(state.length - 1))
        latest = state.last(3).tolist()
        tokens = draft.tokens.tolist()
        for script, line, phone, age, (*before, left), kept in zip(
            self._scripts, tokens, phones, ages, latest, reused.tolist(), strict=True
        ):
            end = len(script) - 1
            third, second = (CODES if token < 0 else token % codes for token in before)
            for j in range(count):
                phone, age = (min(phone + 1, end), 0) if left >= codes else (phone, age + 1)
                code = left % codes
                if j >= kept:
                    token = self._table.guess(script[phone], tell(min(age, OLDEST), code, second, third))
                    line[j] = 2 * codes if phone == end and token >= codes else token
                third, second, left = second, code, line[j]
        drafted = torch.tensor(tokens, device=state.device)
        sure = torch.zeros_like(draft.q).scatter_(2, drafted[..., None], 1.0)
        if reused.any():
            old = torch.from_numpy(np.arange(count) < reused[:, None]).to(state.device)
            sure = torch.where(old[..., None], draft.q, sure)
        return Draft(drafted, sure)
