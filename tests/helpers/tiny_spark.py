"""A tiny Spark: its language model and tokenizer, with all codes of the published one."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

from tiny_models import scatter
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

MARKS = (
    "im_end", "task_tts", "task_controllable_tts", "start_content", "end_content", "start_style_label",
    "end_style_label", "start_global_token", "end_global_token", "start_semantic_token", "end_semantic_token",
    *(f"gender_{i}" for i in range(2)), *(f"{name}_label_{i}" for name in ("pitch", "speed") for i in range(5)),
    *(f"pitch_value_{i}" for i in range(9)),
)  # fmt: skip


def tokenizer() -> PreTrainedTokenizerFast:
    letters = ["<unk>", "\n", *string.ascii_letters, *string.digits, *" .,?!'-:;"]
    made = Tokenizer(WordLevel({letter: i for i, letter in enumerate(letters)}, unk_token="<unk>"))
    made.pre_tokenizer = Split("", "isolated")
    found = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", eos_token="<|im_end|>")
    codes = [f"bicodec_{kind}_{i}" for kind, count in (("global", 4096), ("semantic", 8192)) for i in range(count)]
    names = [name for name in (*MARKS, *codes) if name != "im_end"]
    found.add_tokens([AddedToken(f"<|{name}|>", special=False, normalized=False) for name in names])
    return found


def model(seed: int = 0) -> Any:
    words = tokenizer()
    config = Qwen2Config(
        vocab_size=len(words) + 3, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=4096, tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=words.eos_token_id, pad_token_id=None,
    )  # fmt: skip
    made = scatter(Qwen2ForCausalLM(config), seed, 0.3)
    first = words.convert_tokens_to_ids("<|bicodec_global_0|>")
    made.lm_head.weight.data[first : first + 4096] *= 1.06  # speakers are about as likely as speech
    return made


def spark(folder: Path) -> Path:
    """Writes the folder of the language model."""
    model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
