"""Tiny random models of the flat image families, with tokenizers of the published classes."""

from __future__ import annotations

import string
from typing import Any

from tiny_models import TEXT, scatter
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    GemmaTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
)

MARKS = {
    "simplear": ("<|t2i|>", "<|soi|>"),
    "liquid": ("<unconditional>", "<boi>"),
    "emu3": ("<|extra_203|>", "<|extra_200|>", "<|image start|>", "<|image token|>"),
    "emu3.5": ("<|extra_203|>", "<|extra_100|>", "<|extra_200|>", "<|image start|>", "<|image token|>"),
}
KINDS = {
    "simplear": (Qwen2ForCausalLM, Qwen2Config),
    "liquid": (GemmaForCausalLM, GemmaConfig),
    "emu3": (LlamaForCausalLM, LlamaConfig),
    "emu3.5": (Qwen3ForCausalLM, Qwen3Config),
}


def tokenizer(layout: str, codes: int = 20) -> Any:
    """A tokenizer of the published class, whose vocabulary is letters, bytes and the marks of a layout."""
    if layout == "liquid":
        letters = [*string.ascii_letters, *string.digits, ".", ",", "\u2581"]
        vocabulary = {name: i for i, name in enumerate(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *letters])}
        found: Any = GemmaTokenizer(vocab=vocabulary, merges=[])
        # As Gemma's published tokenizer.json; transformers derives it from `add_bos_token` for other classes only.
        found._tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    else:
        alphabet = sorted(ByteLevel.alphabet())
        vocabulary = {name: i for i, name in enumerate([*alphabet, "<|endoftext|>"])}
        found = Qwen2Tokenizer(vocab=vocabulary, merges=[])
    marks = list(MARKS[layout])
    if layout.startswith("emu3"):
        marks += [f"<|visual token {code:06d}|>" for code in range(codes)]
    found.add_special_tokens({"additional_special_tokens": marks})
    return found


def model(layout: str, codes: int = 20, seed: int = 0, spread: float = 0.3, **text: Any) -> Any:
    """A model whose vocabulary is that of `tokenizer`, with codes after it or, for Emu3, at its end."""
    kind, config = KINDS[layout]
    ids = len(tokenizer(layout, codes))
    size = ids if layout.startswith("emu3") else ids + codes
    own = {"vocab_size": size, "head_dim": 8, "max_position_embeddings": 512, "pad_token_id": None}
    made = scatter(kind(config(**(TEXT | own | {"bos_token_id": None, "eos_token_id": None} | text))), seed, spread)
    if layout == "liquid":  # embeddings are the head, and are scaled: smaller ones keep tokens uncertain
        made.model.embed_tokens.weight.data.mul_(0.3)
    return made
