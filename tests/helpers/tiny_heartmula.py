"""A tiny HeartMuLa in the published layout: names and shapes of weights as in torchtune, files as on the Hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor

# layers, heads, heads of keys and values, width, width of the MLPs, positions
SIZES = {"tiny-backbone": (2, 4, 2, 32, 48, 128), "tiny-decoder": (2, 2, 1, 24, 32, 64)}
CONFIG: dict[str, Any] = {
    "architectures": ["HeartMuLa"], "model_type": "heartmula", "backbone_flavor": "tiny-backbone",
    "decoder_flavor": "tiny-decoder", "text_vocab_size": 20, "audio_vocab_size": 40, "audio_num_codebooks": 4,
    "muq_dim": 6,
}  # fmt: skip
GENERATION = {"text_bos_id": 1, "text_eos_id": 2, "audio_eos_id": 38, "empty_id": 0}
WORDS = ["<unk>", "<s>", "</s>", "<", "tag", ">", "</", "piano", "happy", "sun", "moon", "la", ",", ".", "night"]


def transformer(name: str, prefix: str) -> dict[str, tuple[int, ...]]:
    layers, heads, kv_heads, dim, hidden, _ = SIZES[name]
    size = dim // heads
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}.norm.scale": (dim,)}
    for layer in range(layers):
        shapes |= {
            f"{prefix}.layers.{layer}.{inner}": shape
            for inner, shape in {
                "attn.q_proj.weight": (heads * size, dim),
                "attn.k_proj.weight": (kv_heads * size, dim),
                "attn.v_proj.weight": (kv_heads * size, dim),
                "attn.output_proj.weight": (dim, heads * size),
                "mlp.w1.weight": (hidden, dim),
                "mlp.w2.weight": (dim, hidden),
                "mlp.w3.weight": (hidden, dim),
                "sa_norm.scale": (dim,),
                "mlp_norm.scale": (dim,),
            }.items()
        }
    return shapes


def state(seed: int, codes: int = 40, codebooks: int = 4, spread: float = 0.3) -> dict[str, Tensor]:
    """Random weights."""
    dim, small = SIZES["tiny-backbone"][3], SIZES["tiny-decoder"][3]
    shapes = {
        **transformer("tiny-backbone", "backbone"),
        **transformer("tiny-decoder", "decoder"),
        "text_embeddings.weight": (CONFIG["text_vocab_size"], dim),
        "audio_embeddings.weight": (codes * codebooks, dim),
        "unconditional_text_embedding.weight": (1, dim),
        "projection.weight": (small, dim),
        "codebook0_head.weight": (codes, dim),
        "audio_head": (codebooks - 1, small, codes),
        "muq_linear.weight": (dim, CONFIG["muq_dim"]),
        "muq_linear.bias": (dim,),
    }
    generator = torch.Generator().manual_seed(seed)
    made = {name: torch.randn(shape, generator=generator) * spread for name, shape in sorted(shapes.items())}
    return {name: 1 + tensor if name.endswith("scale") else tensor for name, tensor in made.items()}


def write(folder: Path, seed: int = 0, codes: int = 40, codebooks: int = 4, spread: float = 0.3) -> Path:
    """A published folder; its tokenizer and generation config lie beside it, as the download command puts them."""
    model = folder / "HeartMuLa-oss-3B"
    model.mkdir(parents=True)
    config = CONFIG | {"audio_vocab_size": codes, "audio_num_codebooks": codebooks}
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "gen_config.json").write_text(json.dumps(GENERATION | {"audio_eos_id": codes - 2}), encoding="utf-8")
    save_file(state(seed, codes, codebooks, spread), model / "model.safetensors")
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return model
