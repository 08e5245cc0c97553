"""The tokenizer of SEED: against the published code, and what is refused.

The numbers are those of `AILab-CVC/SEED` at 93b3cf4 with the state made by `state`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from mmspec.errors import ArgumentError, ModelError
from mmspec.vision.seed_tokenizer import FILE, SeedTokenizer, read_seed

# A hash of names and shapes of the state without the encoder; the embeddings of two images.
NAMES = "4aa9f9f179524fce"
EMBEDDINGS = [
    -0.293304, -0.912657, -0.722544, 0.129778, 0.834826, 0.746218, 0.027176, -0.558484, -0.468716, 0.071752, -0.288056,
    -0.873097, -0.691715, 0.118332, 0.793559, 0.720031, 0.044562, -0.516441, -0.447762, 0.048818,
]  # fmt: skip
CODES = (torch.arange(10) * 7 % 16).view(2, 5)


def state() -> dict[str, Tensor]:
    """A deterministic state that needs no random number generator."""
    made = {}
    for name, tensor in SeedTokenizer(16, 4, 24, 2, 5, 10).state_dict().items():
        value = (torch.arange(tensor.numel(), dtype=torch.float64) * 0.7 + len(name)).sin().float().view(tensor.shape)
        scale = (3.0 if "embedding" in name or "pos" in name else 0.4) if tensor.ndim > 1 else 0.3
        made[name] = value * scale + ("norm" in name and name.endswith("weight"))
    return made


def saved(folder: Path, tensors: dict[str, Tensor]) -> Path:
    torch.save(tensors | {"ln_vision.bias": torch.zeros(4)}, folder / FILE)
    return folder


def test_embeddings_are_those_of_the_published_code(tmp_path: Path) -> None:
    tensors = state()
    names = "\n".join(sorted(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items()))
    assert hashlib.sha256(names.encode()).hexdigest()[:16] == NAMES
    tokenizer = read_seed(saved(tmp_path, tensors))
    np.testing.assert_allclose(tokenizer.embed(CODES).flatten().numpy(), EMBEDDINGS, atol=1e-4)
    with pytest.raises(ArgumentError, match=r"codes has shape \[2, 4\]; it must be \[B, 5\]"):
        tokenizer.embed(CODES[:, 1:])
    with pytest.raises(ArgumentError, match="codes must be 0 to 15"):
        tokenizer.embed(CODES + 1)


def test_what_is_refused(tmp_path: Path) -> None:
    tensors = state()
    del tensors["image_down.2.weight"]
    with pytest.raises(ModelError, match="is incomplete; missing: image_down.2.weight"):
        read_seed(saved(tmp_path, tensors))
    del tensors["pos_embed_image"]
    with pytest.raises(ModelError, match="is not a tokenizer of SEED: pos_embed_image is missing"):
        read_seed(saved(tmp_path, tensors))
