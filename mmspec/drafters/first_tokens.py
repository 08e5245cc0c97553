"""The first tokens of the frames of a window, which may force that of the next frame."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.target import FrameFeatureTarget


class FirstTokens:
    """Follows the first tokens of frames through the drafts of a window.

    Args:
        target: Knows what is forced; it has `forces_firsts`.
        state: The batch before the window, with at least one committed token per row.
    """

    def __init__(self, target: FrameFeatureTarget, state: BatchState) -> None:
        self._target = target
        self._at = (state.length - 1) // target.frame_size
        # By row, the frames begun since that of the last committed token, which is the first, and their first tokens.
        self._counts = np.ones_like(self._at)
        self._firsts = state.at(self._at[:, None] * target.frame_size)

    def forced(self) -> NDArray[np.int64]:
        """The only first token that each row's next frame may have, host int64 [B], -1 where it is free."""
        return self._target.forced_firsts(self._firsts, self._counts, self._at)

    def note(self, tokens: Tensor, begins: NDArray[np.bool_]) -> None:
        """Notes drafts int64 [B] in the rows where they begin a frame."""
        if not begins.any():
            return
        missing = int(self._counts.max()) + 1 - self._firsts.shape[1]
        places = torch.from_numpy(self._counts[:, None]).to(tokens.device)
        # In other rows the token goes past the known ones, where the first of a later frame replaces it.
        self._firsts = F.pad(self._firsts, (0, max(missing, 0))).scatter(1, places, tokens[:, None])
        self._counts = self._counts + begins
