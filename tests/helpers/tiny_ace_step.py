"""A tiny 5 Hz language model of ACE-Step 1.5, with 40 codes."""

from __future__ import annotations

import string
from typing import Any

from tiny_models import scatter
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

CODES = 40
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    letters = ["<unk>", "\n", *string.ascii_letters, *string.digits, *" .,?!'-:;#/[]<>"]
    made = Tokenizer(WordLevel({letter: i for i, letter in enumerate(letters)}, unk_token="<unk>"))
    made.pre_tokenizer = Split("", "isolated")
    marks = ["<|im_start|>", "<|im_end|>", "<|pad|>", *(f"<|audio_code_{code}|>" for code in range(CODES))]
    found = PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", eos_token="<|im_end|>", pad_token="<|pad|>"
    )
    found.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    found.chat_template = TEMPLATE
    return found


def model(seed: int = 0) -> Any:
    config = Qwen3Config(
        vocab_size=len(tokenizer()),  # as the processor of the original needs it
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return scatter(Qwen3ForCausalLM(config), seed, 0.3)
