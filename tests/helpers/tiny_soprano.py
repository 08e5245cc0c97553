"""A tiny Soprano, as a folder of the published layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tiny_models import scatter
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

WIDTH, INNER, HIDDEN, LAYERS = 512, 12, 20, 2  # the width is written in the code of the package
MARKS = ["[PAD]", "[UNK]", "[STOP]", "[TEXT]", "[START]"]


def model(seed: int = 0) -> Any:
    config = Qwen3Config(
        vocab_size=60, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=1024, tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    made = scatter(Qwen3ForCausalLM(config), seed, 0.07)
    made.lm_head.weight.data[2] *= 1.6  # the end is likely
    made.generation_config.eos_token_id, made.generation_config.pad_token_id = 2, 0
    return made


def tokenizer() -> PreTrainedTokenizerFast:
    """Marks and letters; padded on the left."""
    letters = "abcdefghijklmnopqrstuvwxyz .,!?'"
    ids = {**{mark: i for i, mark in enumerate(MARKS)}, **{letter: i + 5 for i, letter in enumerate(letters)}}
    made = Tokenizer(WordLevel(ids, unk_token="[UNK]"))
    made.pre_tokenizer = Split("", "isolated")
    found = PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]", eos_token="[STOP]", padding_side="left"
    )
    found.add_tokens(["[TEXT]", "[START]"], special_tokens=True)
    return found


def decoder_state() -> dict[str, Tensor]:
    """The tensors of the decoder, with the published names."""
    shapes: dict[str, tuple[int, ...]] = {"decoder.embed.weight": (INNER, WIDTH, 1), "decoder.embed.bias": (INNER,)}
    for norm in ("decoder.norm", "decoder.final_layer_norm"):
        shapes |= {f"{norm}.weight": (INNER,), f"{norm}.bias": (INNER,)}
    for n in range(LAYERS):
        block = f"decoder.convnext.{n}"
        shapes |= {f"{block}.dwconv.weight": (INNER, 1, 3), f"{block}.dwconv.bias": (INNER,)}
        shapes |= {f"{block}.norm.weight": (INNER,), f"{block}.norm.bias": (INNER,), f"{block}.gamma": (INNER,)}
        shapes |= {f"{block}.pwconv1.weight": (HIDDEN, INNER), f"{block}.pwconv1.bias": (HIDDEN,)}
        shapes |= {f"{block}.pwconv2.weight": (INNER, HIDDEN), f"{block}.pwconv2.bias": (INNER,)}
    shapes |= {"head.out.weight": (2050, INNER), "head.out.bias": (2050,)}
    generator = torch.Generator().manual_seed(3)
    made = {name: torch.randn(shape, generator=generator) * 0.5 for name, shape in shapes.items()}
    return {**made, "head.istft.window": torch.hann_window(2048)}


def soprano(folder: Path) -> Path:
    """Writes the folder."""
    model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    torch.save(decoder_state(), folder / "decoder.pth")
    return folder
