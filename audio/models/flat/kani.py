"""Kani-TTS: an LFM2 that writes the four codes of a frame of NVIDIA's NanoCodec, one after the other.

Source: the package `kani-tts` 1.0.1 (Apache License 2.0). Its prompt ends before the two marks that begin an answer and
speech, which it samples first; here the prompt ends with them.
"""

from __future__ import annotations

from typing import Any

from mmspec.arguments import shown
from mmspec.audio.models.flat.decoding import StreamFormat
from mmspec.audio.models.flat.style import Style
from mmspec.errors import ModelError
from mmspec.sampling.logits_processors import RepetitionPenalty
from mmspec.sampling.params import SamplingParams

# Marks follow the ids of text, and codes follow the marks.
END_OF_TEXT, FIRST_MARK = 2, 64400
BEGIN_SPEECH, END_SPEECH, BEGIN_HUMAN, END_HUMAN, BEGIN_ANSWER = range(FIRST_MARK + 1, FIRST_MARK + 6)
FIRST_CODE, CODES = FIRST_MARK + 10, 4032


def kani_style(config: Any, tokenizer: Any) -> Style:
    """Kani-TTS; its voices are the speakers that the model's configuration names, and there may be none.

    Args:
        config: The model's configuration.

    Raises:
        ModelError: If the configuration names speakers in another form.
    """
    settings = getattr(config, "speaker_settings", None) or {}
    voices = settings.get("speaker_list") or [] if isinstance(settings, dict) else None
    if not isinstance(voices, (list, tuple)) or not all(isinstance(voice, str) and voice.strip() for voice in voices):
        raise ModelError(f"the model's config has speaker_settings={shown(settings)}; its speaker_list must be names")
    # The package's defaults, and the top-k of transformers' generate, which it calls.
    return Style(
        StreamFormat(CODES, FIRST_CODE, END_SPEECH, slots=(0, 1, 2, 3)),
        kani_prompt,
        SamplingParams(1.0, 50, 0.95),
        (RepetitionPenalty(1.1),),
        tokens=1200,  # 300 frames, 24 seconds
        letters=250,
        voices=tuple(voices),
    )


def kani_prompt(tokenizer: Any, text: str, voice: str | None) -> list[int]:
    """The prompt of Kani-TTS: a human turn with speaker and text, then the marks that begin an answer and speech."""
    ids = tokenizer(text if voice is None else f"{voice.strip()}: {text}")["input_ids"]
    return [BEGIN_HUMAN, *ids, END_OF_TEXT, END_HUMAN, BEGIN_ANSWER, BEGIN_SPEECH]
