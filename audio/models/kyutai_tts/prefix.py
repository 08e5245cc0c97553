"""Voices that are the beginning of the audio: codes that Kyutai TTS reads before it reads the text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmspec.audio.models.kyutai_tts.model import KyutaiConfig

ABSENT = -1  # an id whose embedding is zero


class Prefixes:
    """What the rows of a batch begin with: the codes of a voice, or nothing.

    The text of a row begins after the frames of its prefix. As audio follows the text by some steps, the last codes of
    a prefix are given while the first words are already read.

    Args:
        config: The model's configuration.
        prefixes: int64 [K, P] of each row, its codes; P may be 0.
        codebooks: Codebooks that are generated.

    Attributes:
        lengths: P, host int64 [B].
    """

    ROWS = ("_codes", "lengths")

    def __init__(self, config: KyutaiConfig, prefixes: Sequence[Tensor], codebooks: int) -> None:
        self._config = config
        self.lengths = np.array([prefix.shape[1] for prefix in prefixes])
        longest = max(1, *self.lengths)
        padded = [F.pad(prefix[:codebooks].cpu(), (0, longest - prefix.shape[1])) for prefix in prefixes]
        self._codes = torch.stack(padded).numpy()

    def given(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """The codes that are not generated.

        Args:
            steps: Host int64 [B, W], counted from the beginning of the prefix.

        Returns:
            Host int64 [B, W, K]: a code of the prefix, the id after the codes where audio has not begun, or -1 for a
            code that the model generates.
        """
        config, count = self._config, self._codes.shape[1]
        frames = steps[..., None] - (np.array(config.delays[:count]) + config.delay_steps)
        places = frames.clip(0, self._codes.shape[2] - 1).swapaxes(1, 2)
        codes = np.take_along_axis(self._codes, places, axis=2).swapaxes(1, 2)
        inside = frames < self.lengths[:, None, None]
        return np.where(frames < 0, config.card, np.where(inside, codes, -1))

    def prompts(self) -> list[Tensor]:
        """The columns int64 [P + 1, 1 + K] that the model reads before its first own step, one per row."""
        length = int(self.lengths.max())
        steps = np.tile(np.arange(length), (len(self.lengths), 1))
        codes = read_codes(torch.from_numpy(self.given(steps)), torch.from_numpy(steps + 1), self._config)
        first = torch.tensor([self._config.text_card, *[self._config.card] * self._config.codebooks])
        columns = F.pad(codes, (1, 0), value=ABSENT)
        return [torch.cat([first[None], own[:count]]) for own, count in zip(columns, self.lengths, strict=True)]


def read_codes(codes: Tensor, positions: Tensor, config: KyutaiConfig) -> Tensor:
    """Codes of steps as the model reads them.

    Args:
        codes: int64 [B, W, k]; the id after the codes is an absent one.
        positions: int64 [B, W], the positions at which they are read.
        config: The model's configuration.

    Returns:
        int64 [B, W, K]. Codebooks after the first k are absent.
    """
    codes = F.pad(codes, (0, config.codebooks - codes.shape[-1]), value=config.card)
    # Until its delay is over, a codebook has the token that it begins with.
    begun = positions[..., None] > torch.tensor(config.delays, device=codes.device)
    return torch.where(begun, torch.where(codes == config.card, ABSENT, codes), config.card)


def without_voice(columns: Tensor, positions: Tensor, lengths: Tensor, config: KyutaiConfig) -> Tensor:
    """Columns as the unconditional rows of guidance read them: without the text and without the voice.

    Args:
        columns: int64 [B, W, 1 + K].
        positions: int64 [B, W], their positions.
        lengths: int64 [B], frames of the prefixes.
        config: The model's configuration.
    """
    delays = torch.tensor(config.delays, device=columns.device)
    limit = delays + (lengths[:, None, None] + config.delay_steps)
    silent = (positions[..., None] <= limit) & (positions[..., None] > delays)
    text = columns[..., :1].masked_fill(positions[..., None] > 0, ABSENT)
    return torch.cat([text, columns[..., 1:].masked_fill(silent, ABSENT)], dim=-1)
