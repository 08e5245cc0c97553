"""The codec of a tiny Fish Audio S2 Pro in its published form: the names, and deterministic weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tiny_fish_s2 import BOOKS, CODES
from torch import Tensor

RATES, LATENT = [2, 2], 128
TINY: dict[str, Any] = {
    "encoder": 32, "rates": RATES, "decoder": 16, "latent": LATENT, "inner": 64, "in_encoder": [0, 1], "layers": 2,
    "books": [CODES, *[CODES - 4] * (BOOKS - 1)], "book": 4, "down": [2, 2],
}  # fmt: skip
PUBLISHED: dict[str, Any] = {
    "encoder": 64, "rates": [2, 4, 8, 8], "decoder": 1536, "latent": 1024, "inner": 3072, "in_encoder": [0, 0, 0, 4],
    "layers": 8, "books": [4096, *[1024] * 9], "book": 8, "down": [2, 2],
}  # fmt: skip


def shapes(of: dict[str, Any]) -> dict[str, list[int]]:
    """The names and shapes of a file with these sizes, with the buffers that it has too."""
    found = dict[str, list[int]]()

    def conv(name: str, outer: int, inner: int, size: int, parametrized: bool = True, transposed: bool = False) -> None:
        rows, columns = (inner, outer) if transposed else (outer, inner)
        short, long = ".conv.parametrizations.weight.original0", ".conv.parametrizations.weight.original1"
        weights = {short: [rows, 1, 1], long: [rows, columns, size]} if parametrized else {
            ".conv.weight": [rows, columns, size]
        }  # fmt: skip
        found.update({name + part: shape for part, shape in weights.items()} | {name + ".conv.bias": [outer]})

    def unit(name: str, width: int) -> None:
        found.update({f"{name}.block.{n}.alpha": [1, width, 1] for n in (0, 2)})
        conv(f"{name}.block.1", width, width, 7)
        conv(f"{name}.block.3", width, width, 1)

    def transformer(name: str, layers: int, inner: int, width: int) -> None:
        found[f"{name}.freqs_cis"], found[f"{name}.causal_mask"] = [8, 32, 2], [8, 8]  # of other sizes in the file
        found[f"{name}.norm.weight"] = [width]
        for layer in range(layers):
            for part, shape in (
                ("attention.wqkv.weight", [3 * width, width]), ("attention.wo.weight", [width, width]),
                ("feed_forward.w1.weight", [inner, width]), ("feed_forward.w3.weight", [inner, width]),
                ("feed_forward.w2.weight", [width, inner]), ("ffn_norm.weight", [width]),
                ("attention_norm.weight", [width]), ("attention_layer_scale.gamma", [width]),
                ("ffn_layer_scale.gamma", [width]),
            ):  # fmt: skip
                found[f"{name}.layers.{layer}.{part}"] = shape

    def convnext(name: str, width: int) -> None:
        conv(f"{name}.dwconv", width, 1, 7, parametrized=False)
        found.update({f"{name}.norm.{part}": [width] for part in ("weight", "bias")} | {f"{name}.gamma": [width]})
        for part, (outer, inner) in (("pwconv1", (4 * width, width)), ("pwconv2", (width, 4 * width))):
            found.update({f"{name}.{part}.weight": [outer, inner], f"{name}.{part}.bias": [outer]})

    width, latent = of["encoder"], of["latent"]
    conv("encoder.block.0", width, 1, 7)
    for n, (rate, layers) in enumerate(zip(of["rates"], of["in_encoder"], strict=True), 1):
        for k in range(3):
            unit(f"encoder.block.{n}.block.{k}", width)
        found[f"encoder.block.{n}.block.3.alpha"] = [1, width, 1]
        conv(f"encoder.block.{n}.block.4", width := 2 * width, width // 2, 2 * rate)
        if layers:
            transformer(f"encoder.block.{n}.block.5", layers, 3 * width, width)
    last = len(of["rates"]) + 1
    found[f"encoder.block.{last}.alpha"] = [1, width, 1]
    conv(f"encoder.block.{last + 1}", latent, width, 3)
    for i, size in enumerate(of["books"]):
        book = f"quantizer.quantizer.quantizers.{i - 1}" if i else "quantizer.semantic_quantizer.quantizers.0"
        found[f"{book}.codebook.weight"] = [size, of["book"]]
        for part, outer, inner in (("in_proj", of["book"], latent), ("out_proj", latent, of["book"])):
            found[f"{book}.{part}.weight_g"], found[f"{book}.{part}.bias"] = [outer, 1, 1], [outer]
            found[f"{book}.{part}.weight_v"] = [outer, inner, 1]
    for n, rate in enumerate(of["down"]):
        for side in ("downsample", "upsample"):
            conv(f"quantizer.{side}.{n}.0", latent, latent, rate, parametrized=False)
            convnext(f"quantizer.{side}.{n}.1", latent)
    for side in ("pre_module", "post_module"):
        transformer(f"quantizer.{side}", of["layers"], of["inner"], latent)
    width = of["decoder"]
    conv("decoder.model.0", width, latent, 7)
    for n, rate in enumerate(reversed(of["rates"]), 1):
        found[f"decoder.model.{n}.block.0.alpha"] = [1, width, 1]
        conv(f"decoder.model.{n}.block.1", width := width // 2, 2 * width, 2 * rate, transposed=True)
        for k in (2, 3, 4):
            unit(f"decoder.model.{n}.block.{k}", width)
    found[f"decoder.model.{last}.alpha"] = [1, width, 1]
    conv(f"decoder.model.{last + 1}", 1, width, 7)
    return found


def weights() -> dict[str, Tensor]:
    """Deterministic weights."""
    state = dict[str, Tensor]()
    for name, shape in shapes(TINY).items():
        n = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
        value = ((n * 12.9898 + sum(map(ord, name))).sin() * 43758.5453 % 1 - 0.5).float().view(shape)
        if name.endswith(("alpha", "gamma", "norm.weight", "original0", "weight_g")):
            value = 1 + 0.4 * value
        elif len(shape) > 1 and not name.endswith("codebook.weight"):
            value = value * 1.7 / (value[0].numel() ** 0.5)
        elif name.endswith("bias"):
            value = value * 0.1
        state[name] = value
    return state


def codes(frames: int) -> Tensor:
    """Codes int64 [2, K, F] of which some are beyond the smaller codebooks."""
    n = torch.arange(2 * BOOKS * frames).view(2, BOOKS, frames)
    return (n * n * 7 + n // 5) % CODES


def recording(samples: int) -> Tensor:
    """A waveform float32 [samples] that changes."""
    n = torch.arange(samples, dtype=torch.float64)
    return ((n * n / 900).sin() * 0.5 + (n * 0.37).sin() * 0.3).float()


def add_codec(folder: Path) -> Path:
    torch.save(weights(), folder / "codec.pth")
    return folder
