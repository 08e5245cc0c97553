"""MingTok: against the published code, and what is refused.

The numbers are those of `inclusionAI/Ming-UniVision` at 3bbdd2f with the state made by `state`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from mmspec.errors import ArgumentError, ModelError
from mmspec.vision.mingtok import MingTok, read_mingtok

CONFIG: dict[str, Any] = {
    "semantic_decoder": {
        "in_dim": 4, "patch_size": 8, "embed_dim": 128, "decoder_depth": 2, "ffn_layer": "swiglufused",
    },
    "pixel_decoder": {"patch_size": 4, "decoder_depth": 2, "embed_dim": 64},
    "scaling_factor": 1.5,
    "mean": 0.25,
}  # fmt: skip
# A hash of names and shapes of the state without the encoder; features, every 40th; pixels, every 151st.
NAMES = "e2148f22bd89ec93"
FEATURES = [
    0.953082, -0.891658, -0.388109, -0.266094, 1.001866, -0.846719, -0.345157, -0.328696,
    0.834089, -0.869097, -0.195422, -0.17916, 0.795723, -0.95058, -0.1333, -0.050967,
]  # fmt: skip
PIXELS = [
    -0.387404, 0.689107, -0.152048, 0.084931, 1.0, -0.770941, 0.542701, 0.029131, -0.061535, -0.731105, -0.310558,
]  # fmt: skip


def state() -> dict[str, Tensor]:
    """A deterministic state that needs no random number generator."""
    made = {}
    for name, tensor in MingTok(CONFIG).state_dict().items():
        value = (torch.arange(tensor.numel(), dtype=torch.float64) * 0.7 + len(name)).sin().float().view(tensor.shape)
        is_gain = "norm" in name and name.endswith("weight")
        made[name] = value * (0.1 if tensor.ndim > 1 else 0.3) + is_gain
    return made


def saved(folder: Path, tensors: dict[str, Tensor]) -> Path:
    (folder / "config.json").write_text(json.dumps(CONFIG | {"low_level_encoder": {"out_dim": 4}}))
    save_file(tensors | {"low_level_encoder.norm.bias": torch.zeros(4)}, folder / "model.safetensors")
    return folder


def test_features_and_pixels_are_those_of_the_published_code(tmp_path: Path) -> None:
    tensors = state()
    names = "\n".join(sorted(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items()))
    assert hashlib.sha256(names.encode()).hexdigest()[:16] == NAMES
    tokenizer = read_mingtok(saved(tmp_path, tensors))
    latents = (torch.arange(32) * 0.37).cos().view(2, 4, 4)
    with torch.inference_mode():
        features = tokenizer.features(latents)
        earlier = tokenizer.features(latents[:, :3])
    np.testing.assert_allclose(features[1, :, ::40].flatten().numpy(), FEATURES, atol=1e-5)
    torch.testing.assert_close(earlier, features[:, :3])
    images = tokenizer.decode(latents)
    assert images.shape == (2, 3, 16, 16)
    np.testing.assert_allclose(images.flatten()[::151].numpy(), PIXELS, atol=1e-5)
    with pytest.raises(ArgumentError, match=r"latents has shape \[2, 3, 4\]; it must be \[B, N, 4\], N a square"):
        tokenizer.decode(latents[:, :3])


def test_what_is_refused(tmp_path: Path) -> None:
    tensors = state()
    del tensors["sem_to_pix.bias"]
    with pytest.raises(ModelError, match="is incomplete; missing: sem_to_pix.bias"):
        read_mingtok(saved(tmp_path, tensors))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="config.json has no 'semantic_decoder'"):
        read_mingtok(tmp_path)
