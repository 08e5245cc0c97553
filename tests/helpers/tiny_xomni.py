"""A tiny X-Omni with weights that any version of transformers gets alike, and its tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

TEXTS, CODES = 257, 20
PROMPTS = ["a red dog", "the cat on a red moon", "7 cats"]
HEIGHT, WIDTH = 3, 4  # codes


def sizes() -> dict[str, Any]:
    """The config: of four layers the first and the last are for images."""
    return {
        "vocab_size": TEXTS, "mm_vocab_size": CODES + 4, "image_vocab_size": CODES, "hidden_size": 32,
        "intermediate_size": 64, "num_hidden_layers": 4, "num_mm_adap_layers": 1, "num_mm_head_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rope_theta": 1000000.0,
        "tie_word_embeddings": False, "mm_special_tokens": ["<SOM>", "<EOM>", "<IMAGE>"],
    }  # fmt: skip


def fill(named: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
    """Sets parameters by name."""
    for name, parameter in sorted(named, key=lambda pair: pair[0]):
        draws = torch.Generator().manual_seed(sum(map(ord, name)))
        spread = 0.3 if parameter.ndim == 2 else 0.1
        values = torch.randn(parameter.shape, generator=draws) * spread
        parameter.data = values + 1 if "norm" in name else values


def tokenizer() -> Any:
    """Bytes, codes and marks, in the order of the published ids: texts, codes, marks."""
    alphabet = [*sorted(ByteLevel.alphabet()), "<|endoftext|>"]
    fast = Tokenizer(BPE(vocab={name: i for i, name in enumerate(alphabet)}, merges=[]))
    fast.pre_tokenizer, fast.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    marks = [f"<MM-Token-{code}>" for code in range(CODES)] + ["<SOM>", "<EOM>", "<IMAGE>"]
    fast.add_special_tokens([AddedToken(mark, normalized=False, special=True) for mark in ["<|endoftext|>", *marks]])
    return PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<|endoftext|>", pad_token="<|endoftext|>")
