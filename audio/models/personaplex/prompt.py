"""The prompt of PersonaPlex: a voice, a pause, the text of a role and a pause, while the user's stream has a tone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mmspec.audio.models.kyutai_tts.model import KyutaiConfig
from mmspec.audio.multi_codebook.delay_pattern import delay
from mmspec.errors import ModelError
from mmspec.files.checkpoint import read_tensors

# The codes of silence and of a tone of 440 Hz, and the text id of frames without a word.
SILENCE = (948, 243, 1178, 546, 1736, 1030, 1978, 2008)
TONE = (430, 1268, 381, 1611, 1095, 1495, 56, 472)
NO_WORD = 3
PAUSE = 6  # frames, half a second


@dataclass(frozen=True)
class SavedVoice:
    """A voice as it is published: what the model read while it listened to a recording.

    Attributes:
        embeds: [E, D], the embeddings of the columns that were read.
        latest: int64 [1 + K, R], the latest columns; column p is at p modulo R.
    """

    embeds: Tensor
    latest: Tensor


def read_voice(file: Path, config: KyutaiConfig) -> SavedVoice:
    """The voice in a file of the published `voices.tgz`.

    Raises:
        ModelError: If it cannot be read, or does not fit the model.
    """
    found = read_tensors(file, "voice")
    embeds, latest = found.get("embeddings"), found.get("cache")
    width, columns = config.main.dim, 1 + len(config.delays)
    if embeds is None or embeds.ndim != 4 or embeds.shape[1:] != (1, 1, width) or not len(embeds):
        shape = None if embeds is None else list(embeds.shape)
        raise ModelError(f"voice {str(file)!r} has embeddings of shape {shape}; it must be [frames, 1, 1, {width}]")
    least, shape = 2 + max(config.delays), None if latest is None else list(latest.shape)
    if latest is None or latest.ndim != 3 or latest.shape[:2] != (1, columns) or latest.shape[2] < least:
        raise ModelError(
            f"voice {str(file)!r} has a cache of shape {shape}; it must be [1, {columns}, {least} or more]"
        )
    most = torch.tensor([config.text_card, *[config.card] * len(config.delays)])[:, None]
    if bool((latest[0] > most).any()):
        raise ModelError(
            f"voice {str(file)!r} has other ids in its cache than the model: texts end at {config.text_card}, codes at "
            f"{config.card}"
        )
    return SavedVoice(embeds[:, 0, 0], latest[0].long())


@dataclass(frozen=True)
class Conversation:
    """What a row reads: P columns of a prompt, then a column for each frame of the user.

    A column is a text id, the K codes of the model and those of the user, each with its delay.

    Attributes:
        embeds: [E, D], embeddings that are read first; none without a saved voice.
        prompt: int64 [P - E, 1 + 2 * K], the columns after them.
        given: int64 [frames, 1 + 2 * K], the columns of the frames; -1 for what the model makes.
    """

    embeds: Tensor
    prompt: Tensor
    given: Tensor


def conversation(voice: Tensor | SavedVoice, role: Sequence[int], user: Tensor, config: KyutaiConfig) -> Conversation:
    """A conversation.

    Args:
        voice: The codes of a voice, int64 [V, K], or a saved one.
        role: The ids of the role's text.
        user: The codes of the user, int64 [frames, K].
        config: The model's configuration.
    """
    books = config.codebooks
    saved = voice if isinstance(voice, SavedVoice) else None
    # The codes of a saved voice are not known; its columns are.
    own = voice if not isinstance(voice, SavedVoice) else torch.zeros(len(voice.embeds) + 1, books, dtype=torch.int64)
    begun = len(own)
    text = torch.tensor([*[NO_WORD] * (begun + PAUSE), *role, *[NO_WORD] * PAUSE])
    read, frames = len(text), len(user)
    rest = torch.tensor(SILENCE[:books]).expand(read - begun, -1)
    stream = torch.cat(
        [
            torch.cat([text, torch.full((frames,), -1)])[:, None],
            torch.cat([own, rest, torch.full((frames, books), -1)]),
            torch.cat([torch.tensor(TONE[:books]).expand(read, -1), user]),
        ],
        dim=1,
    )
    delays = (0, *config.delays)
    columns = delay(stream[None], delays, config.card, config.card)[0, : len(stream)]
    place, late = torch.arange(len(stream))[:, None], torch.tensor(delays)
    begin = torch.tensor([config.text_card, *[config.card] * len(config.delays)])
    # The frame before the first column is never read.
    columns = torch.where(place <= late, begin, columns)
    if saved is None:
        return Conversation(torch.empty(0, config.main.dim), columns[:read], columns[read:])
    latest = saved.latest[:, place[:, 0] % saved.latest.shape[1]].T
    columns = torch.where(place - late < begun, latest, columns)
    return Conversation(saved.embeds, columns[begun - 1 : read], columns[read:])
