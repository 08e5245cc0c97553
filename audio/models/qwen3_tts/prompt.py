"""The prompts of Qwen3-TTS, as embeddings: text, language, speaker, and reference audio.

Each position of a prompt is the sum of a text embedding and a codec embedding, except for instructions and the marks of
the role, which are text only. The text is either all in the prompt, or one token of it is added to every frame; the
original calls the former `non_streaming_mode`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.audio.models.qwen3_tts.model import Qwen3TTS

# Of the ids of a text in the chat format: the role before it, and what follows it.
ROLE, AFTER, AFTER_REFERENCE = 3, 5, 2


def spoken_text(text: str) -> str:
    """A text to speak, in the chat format."""
    return f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n"


def reference_text(text: str) -> str:
    """The transcript of reference audio, in the chat format."""
    return f"<|im_start|>assistant\n{text}<|im_end|>\n"


def instruction_text(text: str) -> str:
    """An instruction, in the chat format."""
    return f"<|im_start|>user\n{text}<|im_end|>\n"


@dataclass(frozen=True)
class Continuation:
    """Audio that a text continues.

    Attributes:
        ids: int64 [n], the ids of its transcript in the chat format.
        codes: int64 [F, K], its codes.
    """

    ids: Tensor
    codes: Tensor


def joined(continuations: Sequence[Continuation]) -> Continuation:
    """Continuations that follow each other, as one."""
    words = [each.ids[ROLE : len(each.ids) - AFTER_REFERENCE] for each in continuations]
    role, end = continuations[0].ids[:ROLE], continuations[0].ids[-AFTER_REFERENCE:]
    return Continuation(torch.cat([role, *words, end]), torch.cat([each.codes.cpu() for each in continuations]))


@dataclass(frozen=True)
class Qwen3TTSPrompt:
    """What a row speaks, and how.

    Attributes:
        ids: int64 [n], the ids of the text in the chat format.
        instruction: int64 [n], the ids of the instruction in the chat format; or None.
        language: The talker's id of the language; None leaves it open.
        speaker: The talker's id of a speaker, or None.
        continuation: Audio that the text continues, or None.
        whole_text: Whether all of the text is in the prompt.
    """

    ids: Tensor
    instruction: Tensor | None
    language: int | None
    speaker: int | None
    continuation: Continuation | None
    whole_text: bool


def embed_prompt(model: Qwen3TTS, prompt: Qwen3TTSPrompt, voice: Tensor | None) -> tuple[Tensor, Tensor]:
    """The embeddings [T, D] of a prompt, and those [n, D] of the text that is added to the first n frames.

    The text of later frames is padding, of which the second result has at least one.

    Args:
        voice: The vector [D] of a speaker, from the speaker encoder; or None.
    """
    config, device = model.config, model.device

    def text(*ids: int) -> Tensor:
        return model.embed_text(torch.tensor(ids, device=device))

    def codec(*ids: int) -> Tensor:
        return model.embed_first(torch.tensor(ids, device=device))

    pad, eos = text(config.text_pad), text(config.text_eos)
    think, think_bos, think_eos = config.think
    language = [config.no_think, think_bos, think_eos]
    if prompt.language is not None:
        language = [think, think_bos, prompt.language, think_eos]
    marks = [codec(*language)]
    if voice is not None:
        marks.append(voice.to(device, model.dtype)[None])
    elif prompt.speaker is not None:
        marks.append(codec(prompt.speaker))
    head = torch.cat([*marks, codec(config.pad)])
    ids = prompt.ids.to(device)
    parts = [] if prompt.instruction is None else [model.embed_text(prompt.instruction.to(device))]
    parts.append(model.embed_text(ids[:ROLE]))
    parts.append(head + torch.cat([pad.expand(len(head) - 1, -1), text(config.text_bos)]))
    words = model.embed_text(ids[ROLE : len(ids) - AFTER])
    if prompt.continuation is not None:
        transcript = prompt.continuation.ids.to(device)
        frames = model.embed_frames(prompt.continuation.codes.to(device))
        spoken = torch.cat([model.embed_text(transcript[ROLE : len(transcript) - AFTER_REFERENCE]), words, eos])
        audio = torch.cat([codec(config.bos), frames])
        if prompt.whole_text:
            return torch.cat([*parts, spoken + codec(config.pad), audio + pad]), pad
        rest = spoken[len(audio) :]
        beside = torch.cat([spoken[: len(audio)], pad.expand(max(len(audio) - len(spoken), 0), -1)])
        return torch.cat([*parts, beside + audio]), torch.cat([rest, pad])
    if prompt.whole_text:
        return torch.cat([*parts, torch.cat([words, eos]) + codec(config.pad), pad + codec(config.bos)]), pad
    # The original takes the id after the role as the first word, even if the text has none.
    first = model.embed_text(ids[ROLE : ROLE + 1])
    rest = model.embed_text(ids[ROLE + 1 : max(len(ids) - AFTER, ROLE + 1)])
    return torch.cat([*parts, first + codec(config.bos)]), torch.cat([rest, eos, pad])
