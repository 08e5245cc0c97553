"""`examples/third_party`: the adapters, around random weights in the layout of the published files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mmspec
from mmspec.testing.adapters import check_windows


@pytest.fixture
def folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(root / "examples/third_party"))
    yield root / "examples/third_party"
    for name in ("measure", "image_gpt", "vq_transformer", "whisper_from_wheel"):
        sys.modules.pop(name, None)


def pixel_weights(width: int, side: int) -> dict[str, Tensor]:
    shapes = {"sos": (width,), "token_embeddings.weight": (16, width), "position_embeddings.weight": (side**2, width)}
    shapes |= {"ln_f.weight": (width,), "ln_f.bias": (width,), "head.weight": (16, width)}
    for layer in range(8):
        own = {"attn.in_proj_": 3 * width, "attn.out_proj.": width, "mlp.0.": 4 * width, "mlp.2.": width}
        for name, rows in own.items():
            inner = 4 * width if name == "mlp.2." else width
            shapes |= {f"layers.{layer}.{name}weight": (rows, inner), f"layers.{layer}.{name}bias": (rows,)}
        for name in ("ln_1.", "ln_2."):
            shapes |= {f"layers.{layer}.{name}weight": (width,), f"layers.{layer}.{name}bias": (width,)}
    generator = torch.Generator().manual_seed(0)
    # Large layers or biases of norms would choose one token for all positions.
    found = {
        name: (0.3 if "layers" in name else 1.0) * torch.randn(shape, generator=generator)
        for name, shape in shapes.items()
    }
    found |= {name: torch.full(shape, float("weight" in name)) for name, shape in shapes.items() if "ln_" in name}
    return {f"gpt.{name}": value for name, value in found.items()}


def test_a_pixel_gpt_decodes_as_its_own_generate(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example: Any = import_module("image_gpt")
    monkeypatch.setattr(example, "SIDE", 4)
    state = pixel_weights(8, 4) | {"centroids": torch.linspace(0, 1, 16)[:, None]}
    torch.save({"state_dict": state}, tmp_path / "x.ckpt")
    with mmspec.register("adapter", "PixelGPT", example):
        pipe = example.load(tmp_path / "x.ckpt", "cpu", torch.float32)
        pipe.set_progress_bar_config(disable=True)
        own = pipe.model.generate(torch.tensor([[16]]), max_new_tokens=16, do_sample=False)[:, 1:]
        ours = pipe(recipe="scd:window=4", temperature=0, seed=0)
    assert torch.equal(ours.tokens, own) and len(own.unique()) > 1 and ours.images[0].size == (4, 4)


class Layer(nn.Module):
    """A layer of VQ-VAE-Transformer, by its names."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.ModuleDict(
            {f"{name}_proj": nn.Linear(width, width * heads) for name in "qkv"}
            | {"out_proj": nn.Linear(width * heads, width)}
        )
        for name, module in self.attention.items():
            setattr(self.attention, name, module)
        self.attention.n_heads = heads  # type: ignore[assignment]
        self.attention_ln, self.feed_forward = nn.LayerNorm(width), nn.Linear(width, width)


def test_windows_of_the_vq_target_are_single_tokens(folder: Path) -> None:
    example: ModuleType = import_module("vq_transformer")
    torch.manual_seed(0)
    model = SimpleNamespace(
        token_embedding=nn.Embedding(129, 8), positional_embedding=nn.Embedding(10, 8), input_ln=nn.LayerNorm(8),
        transformer=[Layer(8, 2), Layer(8, 2)], get_logit=nn.Linear(8, 128),
    )  # fmt: skip
    assert check_windows(lambda rows, slack: example.VQTarget(model, rows, slack), length=9) < 1e-4


def test_a_whisper_keeps_its_tensors(folder: Path) -> None:
    example: ModuleType = import_module("whisper_from_wheel")
    stacked = torch.arange(12.0).view(6, 2)
    found = example.renamed(
        {
            "encoder/layer_0/self_attention/linear_0/weight": stacked,
            "encoder/layer_0/self_attention/linear_0/bias": torch.zeros(6),
            "decoder/layer_1/ffn/layer_norm/gamma": torch.ones(2),
            "decoder/embeddings/weight": stacked,
            "encoder/position_encodings/encodings": stacked,
        }
    )
    layer = "model.encoder.layers.0.self_attn."
    assert torch.equal(torch.cat([found[f"{layer}{part}_proj.weight"] for part in "qkv"]), stacked)
    assert {f"{layer}q_proj.bias", f"{layer}v_proj.bias"} < set(found) and f"{layer}k_proj.bias" not in found
    assert "model.decoder.layers.1.final_layer_norm.weight" in found
    assert {"model.decoder.embed_tokens.weight", "model.encoder.embed_positions.weight"} < set(found)
