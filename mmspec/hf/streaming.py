"""Streamers of transformers: tokens are put as they are committed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from mmspec.decoding.step import Step


class TokenStream:
    """Puts committed tokens into a streamer, position by position, as the generation loop of transformers does.

    A position of a batch is put when every row has reached it; rows that have ended are padded.

    Args:
        streamer: A `transformers.generation.BaseStreamer`.
        length: Tokens of a row that does not end early, N.
        eos: Ids that end a row.
        pad: The id after a row's end.
        stopped: The length of each row that a stopping criterion has ended, by row; filled while decoding.
    """

    def __init__(self, streamer: Any, length: int, eos: Collection[int], pad: int, stopped: Mapping[int, int]) -> None:
        self._streamer = streamer
        self._length = length
        self._eos = eos
        self._pad = pad
        self._stopped = stopped
        self._count = 0

    def __call__(self, step: Step) -> None:
        """Puts the positions that all rows have reached; `step` holds ids of the model."""
        rows = [tokens.tolist() for tokens in step.tokens]
        running = [len(ids) for row, ids in enumerate(rows) if not self._ended(row, ids)]
        end = min(running) if running else max(len(ids) for ids in rows)
        for n in range(self._count, end):
            self._streamer.put(torch.tensor([ids[n] if n < len(ids) else self._pad for ids in rows]))
        self._count = max(self._count, end)

    def _ended(self, row: int, ids: list[int]) -> bool:
        return len(ids) >= self._length or row in self._stopped or (bool(ids) and ids[-1] in self._eos)
