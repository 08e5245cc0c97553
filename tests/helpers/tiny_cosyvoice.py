"""A small CosyVoice in a folder in its published form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tiny_models import scatter
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

LETTERS = ["<|endoftext|>", "a", "b", "c", "d"]
CODES = 20


def cosyvoice(folder: Path, third: bool = False, seed: int = 0, layers: int = 2) -> tuple[Path, Any]:
    """The folder, and the modules saved in it."""
    (folder / "CosyVoice-BlankEN").mkdir(parents=True)
    config = Qwen2Config(
        vocab_size=300, hidden_size=16, intermediate_size=32, num_hidden_layers=layers, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=True,
    )  # fmt: skip
    ids = CODES + (200 if third else 3)
    parts: dict[str, nn.Module] = {"llm": nn.ModuleDict({"model": Qwen2ForCausalLM(config)})}
    parts |= {"llm_decoder": nn.Linear(16, ids, bias=not third), "speech_embedding": nn.Embedding(ids, 16)}
    if not third:
        parts["llm_embedding"] = nn.Embedding(2, 16)
    model = scatter(nn.ModuleDict(parts), seed, 0.3).eval().requires_grad_(False)
    torch.save(model.state_dict(), folder / "llm.pt")
    config.save_pretrained(folder / "CosyVoice-BlankEN")
    letters = {letter: i for i, letter in enumerate(LETTERS)}
    Qwen2Tokenizer(vocab=letters, merges=[]).save_pretrained(folder / "CosyVoice-BlankEN")
    return folder, model
