"""Stopping criteria of transformers, evaluated on every committed token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class StopTest:
    """Evaluates stopping criteria on one row at a time, with its prompt and its tokens so far.

    A draft is never part of what a criterion is given, so that a row ends where token-by-token decoding of the same
    tokens ends it.

    Args:
        criteria: Functions of ids int64 [1, n] and scores, which are None.
        prompts: The ids before the new tokens, int64 [B, T].
        first: The model's id of the loop's token 0.

    Attributes:
        lengths: The number of new tokens of each row that a criterion has ended, by row.
    """

    def __init__(self, criteria: Sequence[Any], prompts: Tensor, first: int) -> None:
        self.lengths: dict[int, int] = {}
        self._criteria = criteria
        self._prompts = prompts
        self._first = first

    def __call__(self, row: int, tokens: Tensor) -> bool:
        """Whether `row` ends with the last of its tokens, int64 [n]; see `mmspec.decoding.layout.Layout`."""
        ids = torch.cat([self._prompts[row], tokens + self._first])[None]
        ended = any(bool(torch.as_tensor(criterion(ids, None)).all()) for criterion in self._criteria)
        if ended:
            self.lengths[row] = len(tokens)
        return ended
