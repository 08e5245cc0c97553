"""MTP modules: what `MtpLayer` of transformers computes, loaded from whole models, and exact."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import Qwen3Config
from transformers.modeling_layers import MtpLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm, Qwen3RotaryEmbedding

import mmspec.drafters.chain
import mmspec.testing.toys
from mmspec.decoding.layout import Layout
from mmspec.errors import ModelError
from mmspec.heads.checkpoint import load_head
from mmspec.heads.mtp import MTPHead
from mmspec.sampling.ops import TorchOps
from mmspec.sampling.params import SamplingParams
from mmspec.testing.exactness import check
from mmspec.testing.toys import FEATURES, toy_resources

V, D, LAYERS = 12, 32, 5
SIZES = {"hidden_size": D, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
CONFIG = SIZES | {"vocab_size": V, "num_hidden_layers": LAYERS, "num_nextn_predict_layers": 1, "rope_theta": 1e4}
NAMES = {
    "deepseek": {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "post_norm": "shared_head.norm"},
    "qwen": {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc", "post_norm": "norm"},
    "vita": {
        "enorm": "mtp_embed_norms.0",
        "hnorm": "mtp_hidden_norms.0",
        "eh_proj": "mtp_projs.0",
        "post_norm": "model.norm",
    },
}
PLACES = {
    "deepseek": (f"model.layers.{LAYERS}.", ""),
    "qwen": ("mtp.", "layers.0."),
    "vita": ("", f"model.layers.{LAYERS}."),
}


def layer() -> MtpLayer:
    config = Qwen3Config(**SIZES, vocab_size=V, num_hidden_layers=1, rms_norm_eps=1e-6, attn_implementation="sdpa")
    torch.manual_seed(0)
    made = MtpLayer(config, Qwen3DecoderLayer, Qwen3RMSNorm, 0)
    for p in made.parameters():
        torch.nn.init.normal_(p, mean=float(p.ndim == 1), std=0.3)
    return made.eval()


def write(folder: Path, layout: str, **more: torch.Tensor) -> torch.Tensor:
    """Writes a whole model with the module, in two files of weights; returns the embedding of its tokens."""
    prefix, block = PLACES[layout]
    embedding = torch.randn(V, D, generator=torch.Generator().manual_seed(1))
    tensors = {"model.embed_tokens.weight": embedding, "lm_head.weight": torch.zeros(V, D)}
    for name, tensor in layer().state_dict().items():
        part, _, last = name.rpartition(".")
        part = NAMES[layout].get(part, part.replace("mtp_block.", block))
        tensors[f"{prefix}{part}.{last}"] = tensor
    tensors |= {f"{prefix}{name}": tensor for name, tensor in more.items()}
    for part, names in enumerate((list(tensors)[:3], list(tensors)[3:])):
        save_file({name: tensors[name] for name in names}, folder / f"model-0000{part + 1}-of-00002.safetensors")
    counted = {"num_hidden_layers": LAYERS + (layout == "vita")}  # VITA-Audio counts the module as a layer
    (folder / "config.json").write_text(json.dumps(CONFIG | counted))
    return embedding


@pytest.mark.parametrize("layout", NAMES)
@torch.no_grad()
def test_a_module_computes_what_that_of_transformers_does(layout: str, tmp_path: Path) -> None:
    embedding, theirs = write(tmp_path, layout), layer()
    head = load_head(tmp_path)
    assert isinstance(head, MTPHead)
    head.save_pretrained(tmp_path / "again")
    again = load_head(tmp_path / "again")
    assert isinstance(again, MTPHead)
    tokens, features = torch.tensor([[3, 1, 4, 1, 5]]), torch.randn(1, 5, D)
    places = torch.arange(5)[None]
    wanted = theirs(
        embedding[tokens],
        features,
        Qwen3RotaryEmbedding(theirs.config)(features, places),
        torch.full((5, 5), -torch.inf).triu(1)[None, None],
        places,
        None,
    )
    for each in (head, again):
        torch.testing.assert_close(each.unroll(tokens, features, 1)[0], wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("layout", NAMES)
def test_damaged_models_are_refused(layout: str, tmp_path: Path) -> None:
    write(tmp_path, layout)
    config = json.loads((tmp_path / "config.json").read_text())
    other: list[dict[str, Any]] = [{"rope_theta": "x"}, {"rope_theta": []}, {"layer_types": 3}]
    for changes in other:
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        with pytest.raises(ModelError, match="is not a draft head as its config.json describes: "):
            load_head(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"model.embed_tokens.weight": torch.zeros(())}, tmp_path / "model-00003-of-00003.safetensors")
    with pytest.raises(ModelError, match="is not a draft head as its config.json describes: "):
        load_head(tmp_path)


def test_modules_of_other_layers_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "deepseek", **{"mlp.experts.0.up_proj.weight": torch.zeros(2, 2)})
    with pytest.raises(ModelError, match=r"MTP module with 'mlp.experts.*'; mmspec reads layers of llama and qwen3"):
        load_head(tmp_path)
    for part in tmp_path.glob("model-*"):
        part.unlink()
    save_file({"lm_head.weight": torch.zeros(V, D)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="has no MTP module with names of DeepSeek"):
        load_head(tmp_path)


def with_module(*arguments: Any) -> Any:
    """The resources of a toy whose EAGLE head is an MTP module."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        head = MTPHead(arguments[1], FEATURES, 24, 4, 2, mtp_qk_norm=True, prefix=1, max_position_embeddings=64)
        for p in head.parameters():
            torch.nn.init.normal_(p, std=0.5)
    resources = toy_resources(*arguments)
    return replace(resources, heads={**resources.heads, "eagle": head.eval()})


@pytest.mark.parametrize("recipe", ["eagle:window=3", "tree-eagle:branch=2/2"])
def test_modules_are_exact(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And drafts that are the likeliest token while q is a distribution are found."""
    monkeypatch.setattr(mmspec.testing.exactness, "toy_resources", with_module)
    setting = SamplingParams(temperature=1.3, top_p=0.9, guidance_scale=1.5)
    result = check(recipe, setting, samples=20_000, layout=Layout(4, 2), seed=3)
    assert result.ok and result.tokens_per_call > 1, result
    if recipe.startswith("eagle"):
        monkeypatch.setattr(TorchOps, "sample_draft", staticmethod(lambda q, u: q.argmax(-1)))
        assert not check(recipe, setting, samples=20_000, layout=Layout(4, 2), seed=3).ok
