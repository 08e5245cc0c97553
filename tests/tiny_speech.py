"""Tiny random speech models of each class of transformers."""

from __future__ import annotations

from typing import Any

from tiny_models import scatter
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from mmspec.audio.flat import Stream

# Text in ids 1 to 9, then the end, then 2 slots of 5 codes of one codebook each.
STREAM = Stream(codes=5, first=11, end=10, slots=(0, 1))


def flat(seed: int = 0, layers: int = 2, qwen: bool = False, spread: float = 0.3, vocab_size: int = 21) -> Any:
    kind, config = (Qwen2ForCausalLM, Qwen2Config) if qwen else (LlamaForCausalLM, LlamaConfig)
    return scatter(
        kind(
            config(
                vocab_size=vocab_size,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=layers,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=64,
                bos_token_id=None,
                eos_token_id=None,
                pad_token_id=0,
            )
        ),
        seed,
        spread,
    )
