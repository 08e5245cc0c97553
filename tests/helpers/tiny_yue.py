"""A tiny YuE: both stages with the ids of the published vocabulary, and texts as its tokenizer reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tiny_models import scatter
from transformers import LlamaConfig, LlamaForCausalLM

POSITIONS = 420  # in place of 16384, so that songs outgrow them
VOCABULARY = 83744


class Pieces:
    """Encodes the texts that were recorded from the published tokenizer."""

    def __init__(self, known: Mapping[str, Sequence[int]]) -> None:
        self.known = known

    def encode(self, text: str) -> list[int]:
        return list(self.known[text]) if text else []


def model(seed: int = 0, positions: int = POSITIONS, layers: int = 2) -> Any:
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=layers, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=positions, tie_word_embeddings=False, bos_token_id=1,
        eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    made = scatter(LlamaForCausalLM(config), seed, 0.3)
    made.lm_head.weight.data *= 3
    return made
