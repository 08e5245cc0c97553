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
from mmspec.noise import Draws
from mmspec.rows import Rows
from mmspec.verify import Draft, Verdict

Index = NDArray[np.int64]
LEVELS = 4
_BEFORE, _PHONE, _AFTER, _VOICE = 1, 2, 3, 11  # columns of a script's features
OLDEST, _PHONES = 15, 128
_PRIME, _WORD = 0x9E3779B97F4A7C15, 2**64 - 1

Number = TypeVar("Number", bound=Any)  # int, or an array of uint64


def places(features: Index) -> tuple[Index, Index]:
    """A number for each phone, its next one and the voice, and one for these and the phone before, int64 [J] each."""
    wide = (features[:, _VOICE] * _PHONES + features[:, _PHONE]) * _PHONES + features[:, _AFTER]
    return wide, wide * _PHONES + features[:, _BEFORE]


def key(level: int, wide: Number, full: Number, old: Number, left: Number, second: Number) -> Number:
    """What a guess is looked up by, below 2**32; level 0 tells most.

    **Arguments:**

    - `wide`, `full`: of `places`; `old`: tokens of the phone before, at most `OLDEST`.
    - `left`, `second`: the code before and the one before that; `CODES` where there is none.
    """
    told = (wide if level > 1 else full) * (OLDEST + 1) + old
    if level < 3:
        told = told * (CODES + 1) + left
    if level < 1:
        told = told * (CODES + 1) + second
    hashed: Number = ((told * LEVELS + level) * _PRIME & _WORD) >> 32
    return hashed


class TextTable:
    """The token that was seen most often in each context.

    **Arguments:**

    - `keys`: int64 [P]; `tokens`: int [P].
    """

    def __init__(self, keys: Index, tokens: NDArray[np.integer]) -> None:
        self.keys = keys
        self.tokens = tokens
        self._found: dict[int, int] = dict(zip(keys.tolist(), tokens.tolist(), strict=True))

    @staticmethod
    def count(keys: Index, tokens: Index, least: int = 3) -> TextTable:
        """Counts contexts int64 [levels, n] and the tokens int64 [n] in them; what was seen less often is left out."""
        pairs, counts = np.unique(np.tile(tokens, len(keys)) + keys.ravel() * 2**12, return_counts=True)
        order = np.lexsort((-counts, pairs >> 12))
        pairs, counts = pairs[order], counts[order]
        first = np.concatenate([[True], np.diff(pairs >> 12) > 0]) & (counts >= least)
        return TextTable(pairs[first] >> 12, pairs[first] % 2**12)

    def guess(self, wide: int, full: int, old: int, left: int, second: int) -> int:
        """The token of the most telling context that is known; token 0 where none is."""
        for level in range(LEVELS):
            token = self._found.get(key(level, wide, full, old, left, second))
            if token is not None:
                return token
        return 0


class TextGuesses:
    """Puts guesses of a `TextTable` behind drafts; see `mmspec.drafters.jacobi.Extender`.

    Rows and slots are gone through one by one: a look-up in a dictionary costs less than any operation on arrays.

    **Arguments:**

    - `table`: the guesses.
    - `target`: knows the phone that each row is in.
    - `features`: int64 [J, columns] of each row's script.
    """

    calls = 0

    def __init__(self, table: TextTable, target: SpokenTarget, features: Sequence[Index]) -> None:
        self._table = table
        self._target = target
        self._scripts = [[part.tolist() for part in places(one)] for one in features]

    def observe(self, verdict: Verdict, rows: Rows, draws: Draws) -> None:
        pass

    def keep(self, rows: list[int]) -> None:
        self._scripts = [self._scripts[i] for i in rows]

    def extend(self, rows: Rows, draft: Draft, carried: Index, draws: Draws) -> Draft:
        count, codes = draft.tokens.shape[1], self._target.codes
        phones, ages = (part.tolist() for part in self._target.where(rows.length - 1))
        latest = rows.last(2).tolist()
        tokens = draft.tokens.tolist()
        for (wide, full), line, phone, age, (second, left), kept in zip(
            self._scripts, tokens, phones, ages, latest, carried.tolist(), strict=True
        ):
            end = len(wide) - 1
            older = CODES if second < 0 else second % codes
            for j in range(count):
                phone, age = (min(phone + 1, end), 0) if left >= codes else (phone, age + 1)
                code = left % codes
                if j >= kept:
                    token = self._table.guess(wide[phone], full[phone], min(age, OLDEST), code, older)
                    line[j] = 2 * codes if phone == end and token >= codes else token
                older, left = code, line[j]
        drafted = torch.tensor(tokens, device=rows.device)
        sure = torch.zeros_like(draft.q).scatter_(2, drafted[..., None], 1.0)
        if carried.any():
            old = torch.from_numpy(np.arange(count) < carried[:, None]).to(rows.device)
            sure = torch.where(old[..., None], draft.q, sure)
        return Draft(drafted, sure)
