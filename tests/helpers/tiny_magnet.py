"""A tiny MAGNeT in the published layout: weights of the model and of its EnCodec as audiocraft names them, and T5."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from tiny_codecs import encodec
from tiny_models import scatter
from tiny_music import tokenizer
from torch import Tensor
from transformers import T5Config, T5EncoderModel

BOOKS, CODES, DIM, HIDDEN, LAYERS, TEXT, STEPS = 3, 16, 32, 48, 2, 24, (4, 3, 2)
SETTINGS = """\
lm_model: transformer_lm_magnet
sample_rate: 1000
dataset: {segment_duration: 0.2}
masking: {span_len: 3}
codebooks_pattern: {modeling: parallel}
conditioners: {description: {model: t5, t5: {name: t5-base}}}
fuser: {cross_attention_pos_emb: false, sum: [], prepend: [], cross: [description]}
transformer_lm: {num_heads: 4, norm_first: true, activation: gelu, positional_embedding: sin, subcodes_context: 2}
"""
CODEC_SETTINGS = """\
compression_model: encodec
sample_rate: 1000
channels: 1
encodec: {causal: false}
seanet: {ratios: [4, 2], n_filters: 4, dimension: 8, pad_mode: constant, true_skip: true, lstm: 2}
"""


def state(seed: int = 0) -> dict[str, Tensor]:
    """Random weights of the model."""
    shapes: dict[str, tuple[int, ...]] = {"condition_provider.conditioners.description.output_proj.weight": (DIM, TEXT)}
    norms = ["out_norm"]
    for k in range(BOOKS):
        shapes |= {f"emb.{k}.weight": (CODES + 1, DIM), f"linears.{k}.weight": (CODES, DIM)}
    for i in range(LAYERS):
        layer = f"transformer.layers.{i}."
        for attention in ("self_attn", "cross_attention"):
            shapes[f"{layer}{attention}.in_proj_weight"] = (3 * DIM, DIM)
            shapes[f"{layer}{attention}.out_proj.weight"] = (DIM, DIM)
        shapes |= {f"{layer}linear1.weight": (HIDDEN, DIM), f"{layer}linear2.weight": (DIM, HIDDEN)}
        norms += [layer + name for name in ("norm1", "norm_cross", "norm2")]
    generator = torch.Generator().manual_seed(seed)
    made = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in sorted(shapes.items())}
    for name in norms:
        made |= {f"{name}.weight": torch.ones(DIM), f"{name}.bias": torch.zeros(DIM)}
    made["condition_provider.conditioners.description.output_proj.bias"] = torch.full((DIM,), 0.1)
    return made


def codec() -> Any:
    """The codec as transformers has it."""
    return encodec(
        target_bandwidths=[125 * 4 * (BOOKS + 0.4) / 1000],
        use_causal_conv=False,
        use_conv_shortcut=False,
        pad_mode="constant",
    )


def codec_state() -> dict[str, Tensor]:
    """Its weights as audiocraft names them."""
    found = {}
    for name, value in codec().state_dict().items():
        for pattern, own in (
            (r"^(encoder|decoder)\.layers\.", r"\1.model."),
            (r"\.parametrizations\.weight\.original0$", ".weight_g"),
            (r"\.parametrizations\.weight\.original1$", ".weight_v"),
            (r"^quantizer\.layers\.(\d+)\.codebook\.", r"quantizer.vq.layers.\1._codebook."),
        ):
            name = re.sub(pattern, own, name)
        kind = "convtr" if re.match(r"decoder\.model\.(3|6)\.conv", name) else "conv"
        found[re.sub(r"\.conv\.(?=\w+$)", f".{kind}.{kind}.", name)] = value
    return found


def t5() -> Any:
    """The text encoder; words are those of `tiny_music.tokenizer`."""
    torch.manual_seed(0)
    model = T5EncoderModel(T5Config(vocab_size=30, d_model=TEXT, d_kv=8, d_ff=32, num_layers=1, num_heads=2))
    scatter(model, 0, 0.3)
    return model.eval()


def write(folder: Path, seed: int = 0) -> Path:
    """A published folder, and T5 in its folder `t5`."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"best_state": state(seed), "xp.cfg": SETTINGS, "version": "1.4.0"}, folder / "state_dict.bin")
    torch.save({"best_state": codec_state(), "xp.cfg": CODEC_SETTINGS}, folder / "compression_state_dict.bin")
    t5().save_pretrained(folder / "t5")
    tokenizer().save_pretrained(folder / "t5")
    return folder
