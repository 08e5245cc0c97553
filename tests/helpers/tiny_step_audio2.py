"""A tiny Step-Audio 2, as a folder of the published layout, with all of its codes and an encoder that is not read."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_models import scatter
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from mmspec.audio.models.flat.step_audio2 import CODES, READ_ALOUD

FIRST = 151696  # of the published one, as its package states
MARKS = ("<|BOT|>", "<|EOT|>", "<audio_start>", "<audio_end>", "<tts_start>", "<tts_end>", "<tts_pad>")


def sizes(first: int = FIRST) -> dict[str, Any]:
    """The sizes of the Qwen2, as its configuration has them."""
    return {
        "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_attention_groups": 1, "num_key_value_heads": 1, "vocab_size": first + 7024, "rope_scaling": None,
        "max_position_embeddings": 4096, "max_seq_len": 4096, "eos_token_id": first - 53, "pad_token_id": first - 53,
    }  # fmt: skip


def tokenizer(first: int = FIRST) -> PreTrainedTokenizerFast:
    """Letters, marks and codes.

    Args:
        first: The id of code 0.
    """
    letters = ["<unk>", "\n", *string.ascii_letters, *string.digits, *" .,?!'-:;|<>", *dict.fromkeys(READ_ALOUD[:-1])]
    ids = {letter: i for i, letter in enumerate(letters)}
    ids |= {"<|endoftext|>": first - 53, **{mark: first - 16 + i for i, mark in enumerate(MARKS)}}
    ids |= {f"<audio_{code}>": first + code for code in range(CODES + 1)}
    made = Tokenizer(WordLevel(ids, unk_token="<unk>"))
    made.pre_tokenizer = Split(Regex(r"<[|\w]+>|[\s\S]"), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", pad_token="<|endoftext|>")


def model(first: int = FIRST) -> Any:
    """The Qwen2; its words and its end are likely, and so is the code that is padding."""
    own = {name: value for name, value in sizes(first).items() if name not in ("num_attention_groups", "max_seq_len")}
    made = scatter(Qwen2ForCausalLM(Qwen2Config(**own, rope_theta=1e6, tie_word_embeddings=False)), 0, 0.6)
    head, end = made.lm_head.weight.data, first - 15
    head[90 : end - 1], head[:90] = 0, 1.7 * head[:90]
    head[end] *= 4
    head[first + CODES] *= 2
    return made


def step_audio2(folder: Path, first: int = FIRST) -> Path:
    """Writes the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["StepAudio2ForCausalLM"], "model_type": "step_audio_2", "text_config": sizes(first)}
    (folder / "config.json").write_text(json.dumps({**config, "audio_encoder_config": {"n_audio_layer": 1}}))
    unread = {"encoder.conv1.weight": torch.zeros(2, 2, 3), "adapter.linear1.bias": torch.zeros(3)}
    save_file({**model(first).state_dict(), **unread}, folder / "model.safetensors", {"format": "pt"})
    tokenizer(first).save_pretrained(folder)
    return folder
