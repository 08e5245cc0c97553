"""Anole in Meta's layout: logits of Meta's computation, greedy codes, and the VQGAN of the same folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import tiny_processors
import torch
import torch.nn.functional as F
from torch import Tensor

import mmspec
from mmspec.errors import ModelError

DIM, HEADS, KV, INNER, LAYERS = 32, 4, 2, 64, 2
Tensors = dict[str, Tensor]


def weights(seed: int = 0) -> Tensors:
    """Random tensors under Meta's names, without fused queries, keys and values, as `consolidated.pth` has them."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.3

    found = {"tok_embeddings.weight": random(40, DIM), "output.weight": random(40, DIM), "norm.weight": random(DIM) + 1}
    width = DIM // HEADS
    for n in range(LAYERS):
        at, ff = f"layers.{n}.attention.", f"layers.{n}.feed_forward."
        found |= {f"{at}wq.weight": random(DIM, DIM), f"{at}wo.weight": random(DIM, DIM)}
        found |= {f"{at}w{part}.weight": random(KV * width, DIM) for part in "kv"}
        for part in "qk":
            found |= {f"{at}{part}_normalization.weight": random(width) + 1}
            found |= {f"{at}{part}_normalization.bias": random(width)}
        found |= {f"{ff}w1.weight": random(INNER, DIM), f"{ff}w3.weight": random(INNER, DIM)}
        found |= {f"{ff}w2.weight": random(DIM, INNER)}
        found |= {f"layers.{n}.{name}_norm.weight": random(DIM) + 1 for name in ("attention", "ffn")}
    return found


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


def rotated(x: Tensor) -> Tensor:
    """Pairs of neighbouring channels [T, H, D] rotated by their position, as Meta's kernel does."""
    angles = torch.outer(torch.arange(len(x)), 10000.0 ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1]))
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(-2)


def meta_logits(w: Tensors, ids: Tensor) -> Tensor:
    """Logits [T, V] of ids int64 [T], computed as in `chameleon/inference/transformer.py`."""
    x, width = w["tok_embeddings.weight"][ids], DIM // HEADS
    for n in range(LAYERS):
        at, ff = f"layers.{n}.attention.", f"layers.{n}.feed_forward."
        y = rms(x, w[f"layers.{n}.attention_norm.weight"])
        q, k, v = ((y @ w[f"{at}w{part}.weight"].T).unflatten(-1, (-1, width)) for part in "qkv")
        q, k = (
            rotated(
                F.layer_norm(z, (width,), w[f"{at}{part}_normalization.weight"], w[f"{at}{part}_normalization.bias"])
            )
            for part, z in (("q", q), ("k", k))
        )
        k, v = (z.repeat_interleave(HEADS // KV, dim=1) for z in (k, v))
        q, k, v = (z.transpose(0, 1) for z in (q, k, v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + seen.transpose(0, 1).flatten(1) @ w[f"{at}wo.weight"].T
        y = rms(x, w[f"layers.{n}.ffn_norm.weight"])
        x = x + (F.silu(y @ w[f"{ff}w1.weight"].T) * (y @ w[f"{ff}w3.weight"].T)) @ w[f"{ff}w2.weight"].T
    return rms(x, w["norm.weight"]) @ w["output.weight"].T


def folder_of(path: Path, w: Tensors) -> Path:
    """A folder as GAIR publishes it, with a text tokenizer whose unused token stands for images."""
    (path / "models" / "7b").mkdir(parents=True)
    (path / "tokenizer").mkdir()
    torch.save(w, path / "models" / "7b" / "consolidated.pth")
    model = {"dim": DIM, "n_layers": LAYERS, "n_heads": HEADS, "n_kv_heads": KV, "qk_normalization": True}
    (path / "models" / "7b" / "params.json").write_text(json.dumps({"model_parallel_size": 1, "model": model}))
    (path / "models" / "7b" / "consolidate_params.json").write_text("{}")
    tokenizer = json.loads(tiny_processors.chameleon().tokenizer.backend_tokenizer.to_str())
    names = tokenizer["model"]["vocab"]
    letters = "ABCDEFGHIJ"
    for code in range(20):
        names["IMGIMG" + "".join(letters[int(digit)] for digit in str(code)) + "Z"] = 4 + code
    names |= {"<reserved08799>": 27, "<reserved08800>": 28}
    text = json.dumps(tokenizer).replace("<image>", "<reserved08707>")
    (path / "tokenizer" / "text_tokenizer.json").write_text(text)
    _, vqgan = tiny_models.vqgan()
    torch.save({"state_dict": vqgan}, path / "tokenizer" / "vqgan.ckpt")
    (path / "tokenizer" / "vqgan.yaml").write_text("model:\n  params:\n    ddconfig:\n      resolution: 8\n")
    return path


@pytest.mark.releases
@torch.no_grad()
def test_a_folder_of_gair(tmp_path: Path) -> None:
    w = weights()
    pipe = mmspec.load(folder_of(tmp_path, w))
    pipe.set_progress_bar_config(disable=True)
    ids = torch.tensor([0, 33, 35, 26, 25, 7, 12])
    model = pipe.model
    own = model.lm_head(model.model(input_ids=ids[None]).last_hidden_state)[0]
    assert torch.allclose(own, meta_logits(w, ids), atol=1e-4)
    prompts, call = ["a red dog", "cat", "a green cat"], {"temperature": 0, "recipe": "scd:window=5"}
    found: Any = pipe(prompts, output_type="latent", **call).tokens
    tokenizer = pipe.processor.tokenizer
    for row, prompt in enumerate(prompts):
        sides = [torch.tensor([*tokenizer(prompt)["input_ids"], 26, 25]), torch.tensor([0, 25])]
        codes = []
        for _ in range(16):
            cond, uncond = (meta_logits(w, side)[-1, 4:24] for side in sides)
            codes.append(int((uncond + 3.0 * (cond - uncond)).argmax()))
            sides = [torch.cat([side, torch.tensor([4 + codes[-1]])]) for side in sides]
        assert found[row].tolist() == codes
    assert pipe("a red dog", seed=0).images[0].size == (8, 8)
    pipe.processor.save_pretrained(tmp_path / "processor")
    again = mmspec.load(tmp_path, processor=str(tmp_path / "processor"))
    again.set_progress_bar_config(disable=True)
    assert torch.equal(again(prompts, output_type="latent", **call).tokens, found)


def test_other_folders_are_answered(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, weights())
    torch.save(weights(), folder / "models" / "7b" / "consolidated.01.pth")
    with pytest.raises(ModelError, match="must have one folder models/SIZE with params.json and one consolidated.pth"):
        mmspec.load(folder)
    (folder / "models" / "7b" / "consolidated.01.pth").unlink()
    broken = weights()
    del broken["layers.1.attention.wk.weight"]
    torch.save(broken, folder / "models" / "7b" / "consolidated.pth")
    with pytest.raises(ModelError, match=r"missing: model\.layers\.1\.self_attn\.k_proj\.weight"):
        mmspec.load(folder)
