"""Step-Audio 2: a Qwen2 that answers with words and codes of CosyVoice 2 among each other, after its own speech mark.

Nothing is constrained, as in the original: codes are read off the tokens in their order. Its encoder of audio is not
loaded: questions are texts. Source: the package `step-audio2` 1.0.0 (Apache License 2.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

from mmspec.audio.family_options import check_texts, options_of
from mmspec.audio.models.flat.decoding import MarkedCodes, StreamFormat
from mmspec.audio.models.flat.speech import FlatAdapter
from mmspec.audio.models.flat.style import Style
from mmspec.audio.published_folder import PublishedFolder, read_published
from mmspec.audio.text import refuse_marks
from mmspec.errors import ModelError
from mmspec.hf.folder import tokenizer_of
from mmspec.sampling.params import SamplingParams

CODES = 6561  # the next id is padding, and has no sound
READ_ALOUD = "以自然的语速读出下面的文字。\n"  # "read the following text at a natural pace"
UNREAD = ("encoder.", "adapter.")  # of audio
# What the original's class of configurations has where a file leaves it open.
OPEN = {"rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "max_position_embeddings": 8192, "hidden_act": "silu"}


@dataclass(frozen=True)
class Options:
    """The options of a pipeline.

    Attributes:
        system: The system prompt: what is done with a text.
    """

    system: str = READ_ALOUD


def step_audio2_style(config: Any, tokenizer: Any, system: str = READ_ALOUD) -> Style:
    """The style of a Step-Audio 2.

    Args:
        config: The configuration of its Qwen2.
        system: What is done with a text.

    Raises:
        ModelError: If the tokenizer is not that of a Step-Audio 2.
    """
    marks = ("<audio_0>", f"<audio_{CODES}>", "<|EOT|>", "<tts_start>")
    first, padding, end, begin = (tokenizer.convert_tokens_to_ids(mark) for mark in marks)
    if None in (first, end, begin) or padding != first + CODES or max(padding, end) >= config.vocab_size:
        raise ModelError(
            f"the tokenizer has {marks[0]} to {marks[1]} as {first} to {padding} and {marks[2]} as {end}, the model "
            f"{config.vocab_size} ids; they do not belong together"
        )

    def prompt(tokenizer: Any, text: str, voice: str | None) -> list[int]:
        refuse_marks("text", text)
        turns = (f"<|BOT|>system\n{system}<|EOT|>", f"<|BOT|>human\n{text}<|EOT|>", "<|BOT|>assistant\n<tts_start>")
        return [i for turn in turns for i in tokenizer(turn)["input_ids"]]

    # The examples' temperature, and the top-k of transformers' generate, which they call.
    return Style(
        StreamFormat(config.vocab_size, 0, int(end)),
        prompt,
        SamplingParams(0.7, 50),
        (),
        tokens=2048,  # about 60 seconds of 25 codes, and their words
        marked=MarkedCodes((first,), CODES, CODES),
    )


def read_qwen2_config(found: Mapping[str, Any], what: str) -> Qwen2Config:
    """The configuration of the Qwen2 in a `config.json`.

    Raises:
        ModelError: If it has none.
    """
    text = found.get("text_config")
    if not isinstance(text, Mapping):
        raise ModelError(f"{what} has no text_config in its config.json")
    own = {name: value for name, value in text.items() if value is not None and name != "model_type"}
    return Qwen2Config(**{**OPEN, **own, "tie_word_embeddings": False})


def read_model(folder: Path, device: str, dtype: torch.dtype | str) -> Qwen2ForCausalLM:
    """The Qwen2 in a published folder; see `mmspec.audio.published_folder.read_published`."""
    model: Any = read_published(
        folder,
        device,
        dtype,
        "a Step-Audio 2",
        lambda found, what: Qwen2ForCausalLM(read_qwen2_config(found, what)),
        unread=UNREAD,
    )
    model.model.rotary_emb = Qwen2RotaryEmbedding(model.config).to(device)  # not in the files
    return model


def from_folder(source: PublishedFolder) -> FlatAdapter:
    """The adapter of a published folder.

    Raises:
        ArgumentError: For unknown options, and if there is no codec.
        ModelError: For files that are missing, damaged or of another model.
    """
    options = options_of(Options, source.options, "Step-Audio 2")
    check_texts(options, ("system",))
    codec = source.needed_codec("Step-Audio 2", "the token2wav of its folder")
    tokenizer, model = tokenizer_of(source.processor, source.folder), source.model(read_model)
    style = step_audio2_style(model.config, tokenizer, options.system)
    return FlatAdapter(model, tokenizer, codec, style, source.draft_model(read_model))
