"""The voices that Spark makes up: from gender, pitch and speed, the model writes a speaker and then its speech.

A speaker is 32 codes of another codebook than that of the speech. Nothing is constrained, as in the original: codes are
read off the tokens in their order. Source: the repository Spark-TTS at 2f1ea90 (Apache License 2.0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mmspec.arguments import shown
from mmspec.audio.codec import Codec, CodecStream
from mmspec.audio.models.flat.decoding import StreamFormat
from mmspec.audio.models.flat.style import Style
from mmspec.errors import ArgumentError, ModelError, did_you_mean
from mmspec.sampling.params import SamplingParams

SPEAKER = 32  # codes
CODES, SPEAKER_CODES = 8192, 4096
GENDERS = ("female", "male")
LEVELS = ("very_low", "low", "moderate", "high", "very_high")
ATTRIBUTES = {"gender": GENDERS, "pitch": LEVELS, "speed": LEVELS}


@dataclass(frozen=True)
class MadeUpVoice:
    """Codes of a speech and those of its speaker, among other tokens.

    A frame is a code of the speech, and the codes of the speaker, which are the same in all frames.

    Attributes:
        first: The id of entry 0 of the speech's codebook.
        codes: Its entries.
        speaker_first: The id of entry 0 of the speaker's codebook.
        speaker_codes: Its entries.
    """

    first: int
    codes: int
    speaker_first: int
    speaker_codes: int

    @property
    def codebooks(self) -> int:
        """Codes per frame."""
        return 1 + SPEAKER

    def frames(self, ids: Tensor) -> Tensor:
        """The frames int64 [33, F] of ids int64 [n], or [1, F] if a speaker is not among them."""
        speech, speaker = ids[self._speech(ids)] - self.first, self._speaker(ids)
        return speech[None] if speaker is None else with_speaker(speech[None], speaker)

    def description(self, ids: Tensor) -> tuple[list[int], Tensor | None]:
        """The ids before the codes of the speech, and the speaker int64 [32] among them, or None."""
        found = self._speech(ids).nonzero()
        before = ids[: int(found[0])] if len(found) else ids
        return before.tolist(), self._speaker(before)

    def _speech(self, ids: Tensor) -> Tensor:
        return (ids >= self.first) & (ids < self.first + self.codes)

    def _speaker(self, ids: Tensor) -> Tensor | None:
        found = ids[(ids >= self.speaker_first) & (ids < self.speaker_first + self.speaker_codes)][:SPEAKER]
        return found - self.speaker_first if len(found) == SPEAKER else None


def with_speaker(frames: Tensor, speaker: Tensor) -> Tensor:
    """Frames int64 [..., 1, F] with the codes of a speaker, int64 [32]: [..., 33, F]."""
    rows = speaker.to(frames.device)[:, None].expand(*frames.shape[:-2], -1, frames.shape[-1])
    return torch.cat([frames, rows], dim=-2)


class WithSpeaker:
    """A codec of frames that end with the codes of a speaker, for frames with and without them.

    Args:
        speaker: int64 [32], the speaker of all frames; None is the one in the frames, and refuses those without.
    """

    def __init__(self, codec: Codec, speaker: Tensor | None) -> None:
        self._codec, self._speaker = codec, speaker
        self.knows_speaker = speaker is not None
        self.sampling_rate, self.channels, self.hop = codec.sampling_rate, codec.channels, codec.hop
        self.codebooks, self.codebook_size = codec.codebooks, codec.codebook_size

    def decode(self, codes: Tensor) -> Tensor:
        return self._codec.decode(self.completed(codes))

    def stream(self) -> CodecStream:
        return _SpeakerStream(self._codec.stream(), self)

    def tables(self) -> list[Tensor]:
        return self._codec.tables()

    def completed(self, codes: Tensor) -> Tensor:
        """Frames [B, 33, F] of frames with or without a speaker.

        Raises:
            ModelError: For frames without one, if there is none.
        """
        if self._speaker is not None:
            return with_speaker(codes[:, :1], self._speaker)
        if codes.shape[1] == 1:
            raise ModelError(f"the model wrote no speaker, which has {SPEAKER} codes; take another seed")
        return codes


class _SpeakerStream:
    """The stream of a `WithSpeaker`, in which speech waits for its speaker."""

    def __init__(self, stream: CodecStream, codec: WithSpeaker) -> None:
        self._stream, self._codec = stream, codec
        self._waiting: Tensor | None = None

    def push(self, codes: Tensor) -> Tensor:
        if self._codec.knows_speaker:
            return self._stream.push(self._codec.completed(codes))
        if self._waiting is not None:
            rows = codes[:, 1:, :1].expand(-1, -1, self._waiting.shape[-1])
            codes = torch.cat([torch.cat([self._waiting, rows], dim=1), codes], dim=-1)
        if codes.shape[1] == 1:
            self._waiting = codes
            return torch.empty(len(codes), self._codec.channels, 0)
        self._waiting = None
        return self._stream.push(codes)

    def finish(self) -> Tensor:
        if self._waiting is not None:
            self._codec.completed(self._waiting)
        return self._stream.finish()


def made_up_style(
    config: Any, tokenizer: Any, gender: str = "female", pitch: str = "moderate", speed: str = "moderate"
) -> Style:
    """Spark with a voice that the model makes up.

    Args:
        config: The model's configuration.
        gender: One of `GENDERS`.
        pitch: One of `LEVELS`.
        speed: One of `LEVELS`.

    Raises:
        ArgumentError: For another value, and if there is no tokenizer.
        ModelError: If the tokenizer is not that of a Spark.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ArgumentError(f"processor={shown(tokenizer)} is not allowed; it must be the tokenizer of a Spark")
    for (name, allowed), value in zip(ATTRIBUTES.items(), (gender, pitch, speed), strict=True):
        if not isinstance(value, str) or value not in allowed:
            hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
            raise ArgumentError(f"{name}={shown(value)} is not allowed{hint}; it must be one of {', '.join(allowed)}")
    first, speaker_first = (
        first_code(tokenizer, kind, count) for kind, count in (("semantic", CODES), ("global", SPEAKER_CODES))
    )
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    largest = max(first + CODES, speaker_first + SPEAKER_CODES) - 1
    if end in (None, tokenizer.unk_token_id) or largest >= config.vocab_size:
        raise ModelError(
            f"the tokenizer has codes up to the id {largest} and <|im_end|> as {end}, the model {config.vocab_size} "
            "ids; they do not belong together"
        )
    label = f"<|gender_{GENDERS.index(gender)}|><|pitch_label_{LEVELS.index(pitch)}|>"
    label += f"<|speed_label_{LEVELS.index(speed)}|>"

    def prompt(tokenizer: Any, text: str, voice: str | None) -> list[int]:
        asked = f"<|task_controllable_tts|><|start_content|>{text}<|end_content|>"
        return list(tokenizer(f"{asked}<|start_style_label|>{label}<|end_style_label|>")["input_ids"])

    return Style(
        StreamFormat(config.vocab_size, 0, int(end)),
        prompt,
        SamplingParams(0.8, 50, 0.95),
        (),
        tokens=1600,  # 30 seconds of 50 codes, and the speaker
        marked=MadeUpVoice(first, CODES, speaker_first, SPEAKER_CODES),
    )


def first_code(tokenizer: Any, kind: str, count: int) -> int:
    """The id of code 0 of a codebook.

    Raises:
        ModelError: If the tokenizer does not have its codes, one after the other.
    """
    first, last = (tokenizer.convert_tokens_to_ids(f"<|bicodec_{kind}_{code}|>") for code in (0, count - 1))
    if first is None or first == tokenizer.unk_token_id or last != first + count - 1:
        raise ModelError(f"the tokenizer does not number the {kind} codes of a Spark")
    return int(first)
