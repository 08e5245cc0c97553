"""A tiny Emu3.5 with weights that any version of transformers gets alike, and its tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

CODES = 20
PROMPTS = ["a red dog", "the cat on a red moon", "7 cats"]
MARKS = [
    "<|endoftext|>", "<|extra_50|>", "<|extra_51|>", "<|extra_60|>", "<|extra_61|>", "<|extra_100|>", "<|extra_101|>",
    "<|extra_200|>", "<|extra_201|>", "<|extra_203|>", "<|extra_204|>", "<|image token|>", "<|image start|>",
    "<|image end|>",
]  # fmt: skip
LENGTH = {"fixed": 60, "chosen": 420}  # tokens of an answer at most


def sizes() -> dict[str, Any]:
    """The config of the decoder."""
    return {
        "vocab_size": 256 + len(MARKS) + CODES, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 1024,
        "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "attention_bias": False,
        "pad_token_id": 256, "bos_token_id": 256, "eos_token_id": 266,
    }  # fmt: skip


def fill(named: Iterable[tuple[str, torch.nn.Parameter]], seed: int) -> None:
    """Sets parameters by name; the marks that begin an image and end an answer are likely, and small sizes."""
    for name, parameter in sorted(named, key=lambda pair: pair[0]):
        draws = torch.Generator().manual_seed(sum(map(ord, name)) + 10_000 * seed)
        values = torch.randn(parameter.shape, generator=draws) * (0.3 if parameter.ndim == 2 else 0.1)
        parameter.data = values + 1 if "norm" in name else values
        if name == "lm_head.weight":
            names = tokenizer()
            for mark, factor in (("<|image start|>", 2.5), ("<|extra_204|>", 2.0), ("1", 4.0)):
                parameter.data[names.convert_tokens_to_ids(mark)] *= factor


def tokenizer() -> Any:
    """Bytes, marks and codes, in the order of the published ids."""
    fast = Tokenizer(BPE(vocab={name: i for i, name in enumerate(sorted(ByteLevel.alphabet()))}, merges=[]))
    fast.pre_tokenizer, fast.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    marks = [*MARKS, *(f"<|visual token {code:06d}|>" for code in range(CODES))]
    fast.add_special_tokens([AddedToken(mark, normalized=False, special=True) for mark in marks])
    return PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<|extra_204|>", pad_token="<|endoftext|>")
