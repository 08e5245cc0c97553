"""Prompts of Higgs Audio: texts as its examples clean them, and conversations with audio."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.audio.multi_codebook.delay_pattern import delay, linear_delays
from mmspec.errors import PromptError

# The scene and the system messages of examples/generation.py in github.com/boson-ai/higgs-audio.
SCENE = "Audio is recorded from a quiet room."
SYSTEM = "Generate audio following instruction."
SYSTEM_OF_SPEAKERS = (
    "You are an AI assistant designed to convert text into speech.\n"
    "If the user's message includes a [SPEAKER*] tag, do not read out the tag and generate speech for the following "
    "text, using the specified voice.\n"
    "If no speaker tag is present, select a suitable voice on your own."
)
TAGS = re.compile(r"\[SPEAKER\d+\]")
_PUNCTUATION = str.maketrans(
    {
        "，": ", ", "。": ".", "：": ":", "；": ";", "？": "?", "！": "!", "（": "(", "）": ")", "【": "[", "】": "]",
        "《": "<", "》": ">", "“": '"', "”": '"', "‘": "'", "’": "'", "、": ",", "—": "-", "…": "...", "·": ".",
        "「": '"', "」": '"', "『": '"', "』": '"',
    }
)  # fmt: skip
_WORDS = {"(": " ", ")": " ", "°F": " degrees Fahrenheit", "°C": " degrees Celsius"}
_EFFECTS = {
    "[laugh]": "<SE>[Laughter]</SE>",
    "[humming start]": "<SE_s>[Humming]</SE_s>",
    "[humming end]": "<SE_e>[Humming]</SE_e>",
    "[music start]": "<SE_s>[Music]</SE_s>",
    "[music end]": "<SE_e>[Music]</SE_e>",
    "[music]": "<SE>[Music]</SE>",
    "[sing start]": "<SE_s>[Singing]</SE_s>",
    "[sing end]": "<SE_e>[Singing]</SE_e>",
    "[applause]": "<SE>[Applause]</SE>",
    "[cheering]": "<SE>[Cheering]</SE>",
    "[cough]": "<SE>[Cough]</SE>",
}
_ENDS = (".", "!", "?", ",", ";", '"', "'", "</SE_e>", "</SE>")


@dataclass(frozen=True)
class HiggsPrompt:
    """The prompt of one row.

    Attributes:
        ids: int64 [T], text with placeholders for audio.
        columns: int64 [A, K], the columns of the placeholders.
    """

    ids: Tensor
    columns: Tensor


def clean(text: str) -> str:
    """A text as the examples clean it: Latin punctuation, names of sound effects, a mark at the end."""
    text = text.translate(_PUNCTUATION)
    for found, wanted in (_WORDS | _EFFECTS).items():
        text = text.replace(found, wanted)
    text = "\n".join(" ".join(line.split()) for line in text.split("\n") if line.strip()).strip()
    return text if text.endswith(_ENDS) else f"{text}."


def conversation(text: str, scene: str | None, speakers: Sequence[str], context: Sequence[str]) -> list[dict[str, Any]]:
    """The messages of a text, for the chat template.

    Args:
        text: The text to speak.
        scene: Describes the recording; None is nothing.
        speakers: The tags of the whole text. Two and more get feminine and masculine voices in turn, unless there is
            reference audio.
        context: The texts of the audio that precedes: of a reference, and of earlier parts.
    """
    several = len(speakers) > 1
    voices = [f"{tag[1:-1]}: {'masculine' if i % 2 else 'feminine'}" for i, tag in enumerate(speakers)]
    described = [each for each in (scene, "\n".join(voices) if several else None) if each]
    messages = [message("system", SYSTEM_OF_SPEAKERS if several else SYSTEM)]
    if described:
        messages.append(message("scene", "\n\n".join(described)))
    for earlier in context:
        messages += [message("user", earlier), {"role": "assistant", "content": [{"type": "audio"}]}]
    return [*messages, message("user", text)]


def message(role: str, text: str) -> dict[str, Any]:
    """A message of text."""
    return {"role": role, "content": [{"type": "text", "text": text}]}


def read_prompt(processor: Any, messages: list[dict[str, Any]], context: Sequence[Tensor]) -> HiggsPrompt:
    """The prompt of a conversation.

    Args:
        processor: A `HiggsAudioV2Processor`.
        messages: The conversation.
        context: The codes int64 [F, K] of its audio, in its order.

    Raises:
        PromptError: If the text contains the placeholder of audio.
    """
    text, *others = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False).split(
        processor.audio_token
    )
    if len(others) != len(context):
        raise PromptError(f"text contains {processor.audio_token!r}, which stands for audio; leave it out")
    columns = [delayed(codes, processor.audio_stream_bos_id, processor.audio_stream_eos_id) for codes in context]
    for own, following in zip(columns, others, strict=True):
        ends = own.shape[1] - 1
        text += processor.audio_token * (len(own) - ends) + processor.audio_delay_token * ends + following
    ids = processor.tokenizer(text, add_special_tokens=False)["input_ids"]  # the template has them all
    return HiggsPrompt(torch.tensor(ids), torch.cat(columns) if columns else torch.empty(0, 0, dtype=torch.int64))


def delayed(codes: Tensor, begin: int, end: int) -> Tensor:
    """The columns int64 [F + 1 + K, K] of frames int64 [F, K], with the columns that begin and end audio."""
    mark = torch.ones_like(codes[:1])
    frames = torch.cat([mark * begin, codes, mark * end])
    return delay(frames[None], linear_delays(codes.shape[1]), begin, end)[0]
