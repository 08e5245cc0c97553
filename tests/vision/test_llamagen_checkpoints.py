"""Original LlamaGen checkpoints: the results of the original implementation, every file format, and errors."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import VQModel
from golden import GOLDEN, expected
from safetensors.torch import save_file
from torch import Tensor

import mmspec
from mmspec.cli.app import main
from mmspec.errors import ArgumentError, MMSpecError, ModelError, PromptError
from mmspec.vision.llamagen.checkpoint import gpt_config, load_gpt
from mmspec.vision.llamagen.codes import decode_tokens
from mmspec.vision.llamagen.from_checkpoints import from_checkpoints
from mmspec.vision.llamagen.gpt import LlamaGenGPT
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline
from mmspec.vision.llamagen.target import LlamaGenTarget
from mmspec.vision.llamagen.tokenizer import load_tokenizer

C2I = GOLDEN / "llamagen_c2i" / "c2i_tiny.pt"
FILES = {"c2i": C2I, "t2i": GOLDEN / "llamagen_t2i" / "t2i_tiny.pt"}
VQ = GOLDEN / "vq_ds16" / "vq_ds16_tiny.pt"
RECIPES = ["plain", "sjd:window=4", "scd:window=6", "scd:window=4,coupling=gumbel,start=random"]


def quiet(pipe: LlamaGenPipeline) -> LlamaGenPipeline:
    pipe.set_progress_bar_config(disable=True)
    return pipe


def conditions(gpt: LlamaGenGPT, e: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    return (e["class_ids"], None) if "class_ids" in e else (e["caption_emb"], e["emb_mask"])


@pytest.mark.parametrize("name", FILES)
def test_logits_in_one_pass_and_with_the_kv_cache(name: str) -> None:
    gpt, e = load_gpt(FILES[name]), expected(FILES[name].parent)
    condition, mask = conditions(gpt, e)
    tokens, batch = e["image_tokens"], len(e["image_tokens"])
    with torch.inference_mode():
        both = torch.cat([condition, gpt.unconditional(batch)])
        whole = gpt(tokens.repeat(2, 1), both, None if mask is None else mask.repeat(2, 1))
        assert (whole - e["logits_stepwise"]).abs().max() < 1e-4
        target = LlamaGenTarget(gpt, condition, gpt.unconditional(batch), mask, slack=4)
        steps = [target.prefill()]
        for n in range(0, tokens.shape[1] - 1, 4):
            target.forward(torch.zeros(batch, 4, dtype=torch.int64), np.full(batch, n))  # rejected drafts
            steps.append(target.forward(tokens[:, n : min(n + 4, tokens.shape[1] - 1)], np.full(batch, n)))
    stepwise = torch.cat([torch.cat([s.cond for s in steps], 1), torch.cat([s.uncond for s in steps], 1)])  # type: ignore[misc]
    assert (stepwise - e["logits_stepwise"]).abs().max() < 1e-4
    cond, uncond = stepwise.chunk(2)
    assert (uncond + (cond - uncond) * e["cfg_scale"] - e["logits_cfg"]).abs().max() < 2e-4


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", ["c2i", "t2i"])
def test_greedy_tokens_equal_those_of_the_original_sampler(name: str, recipe: str) -> None:
    pipe, e = quiet(mmspec.load(str(FILES[name]))), expected(FILES[name].parent)
    if name == "c2i":
        condition: dict[str, Any] = {"class_labels": e["class_ids"].tolist()}
    else:
        condition = {"prompt_embeds": e["caption_emb_raw"], "prompt_attention_mask": e["emb_mask_raw"]}
    call = condition | {"recipe": recipe, "temperature": 0, "output_type": "latent"}
    scale, interval = float(e["cfg_scale"]), int(e["cfg_interval"])
    assert torch.equal(pipe(**call, guidance_scale=scale).tokens, e["greedy_tokens"])
    assert torch.equal(pipe(**call, guidance_scale=1.0).tokens, e["greedy_tokens_nocfg"])
    by_interval = pipe(**call, guidance_scale=scale, cfg_interval=interval).tokens
    assert torch.equal(by_interval, e["greedy_tokens_cfg_interval"])


def test_a_flat_file_is_the_same_model(tmp_path: Path) -> None:
    # Sizes that were trained with FSDP are published without a wrapper.
    torch.save(torch.load(C2I, weights_only=True)["model"], tmp_path / "flat.pt")
    shutil.copy(C2I.parent / "config.json", tmp_path)
    wrapped, flat = (load_gpt(file).state_dict() for file in (C2I, tmp_path / "flat.pt"))
    assert wrapped.keys() == flat.keys() and all(torch.equal(wrapped[k], flat[k]) for k in wrapped)


def test_the_tokenizer_equals_the_original(tmp_path: Path) -> None:
    vq, e = load_tokenizer(VQ), expected(VQ.parent)
    with torch.inference_mode():
        latents = vq.encode(e["image"]).latents
    assert (latents - e["latents_before_quant"]).abs().max() < 1e-4
    rows = torch.nn.functional.normalize(latents, dim=1).permute(0, 2, 3, 1).flatten(1, 2)
    assert torch.equal(torch.cdist(rows, vq.quantize.embedding.weight[None]).argmin(-1), e["indices"])
    assert (decode_tokens(vq, e["indices"]) - e["decoded"]).abs().max() < 1e-4
    assert (decode_tokens(vq, e["codes"]) - e["decoded_codes"]).abs().max() < 1e-4


def tiny_checkpoint(model_type: str, vocab_size: int = 24) -> dict[str, Tensor]:
    gpt = LlamaGenGPT(
        vocab_size, 16, 2, 2, ffn_dim=32, model_type=model_type, num_classes=5, caption_dim=6, grid_size=3,
        cls_token_num=1 if model_type == "c2i" else 4,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    return {k: torch.randn(v.shape, generator=generator) * 0.4 for k, v in gpt.state_dict().items()}


CONFIG = {"n_head": 2, "block_size": 9}


def llama_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors in the converted layout, by code that is independent of the loader."""
    out: dict[str, Tensor] = {}
    parts = {
        "attention.wo": "self_attn.o_proj",
        "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }
    parts |= {"feed_forward.w1": "mlp.gate_proj", "feed_forward.w3": "mlp.up_proj", "feed_forward.w2": "mlp.down_proj"}
    tops = {"tok_embeddings.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
    tops["output.weight"] = "lm_head.weight"
    for key, value in tensors.items():
        if match := re.fullmatch(r"layers\.(\d+)\.(.+)\.weight", key):
            layer, part = match.groups()
            if part == "attention.wqkv":
                for name, cut in zip("qkv", value.chunk(3), strict=True):
                    out[f"model.layers.{layer}.self_attn.{name}_proj.weight"] = cut.contiguous()
            else:
                out[f"model.layers.{layer}.{parts[part]}.weight"] = value
        else:
            out[tops.get(key, f"model.{key}")] = value
    return out


@pytest.mark.parametrize("model_type", ["c2i", "t2i"])
def test_every_file_format_loads_the_same_model(model_type: str, tmp_path: Path) -> None:
    tensors = tiny_checkpoint(model_type)
    args = argparse.Namespace(lr=1e-4, gpt_model="tiny")
    variants: dict[str, Any] = {
        "flat": tensors,
        "model": {"model": tensors, "optimizer": {"state": {}}, "steps": 3, "args": args},
        "module": {"module": tensors},
        "state_dict": {"state_dict": tensors | {"freqs_cis": torch.zeros(3)}},
        "llama": llama_names(tensors),
    }
    for name, content in variants.items():
        torch.save(content, tmp_path / f"{name}.pt")
    save_file(llama_names(tensors), tmp_path / "llama.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    files = [tmp_path / f"{name}.pt" for name in variants] + [tmp_path / "llama.safetensors"]
    for file in files:
        loaded = load_gpt(file).state_dict()
        assert loaded.keys() == tensors.keys() and all(torch.equal(loaded[k], v) for k, v in tensors.items())


PUBLISHED = {
    "c2i_B_256.pt": (12, 768, 12, 2048, 110.9, 16),
    "c2i_L_384.pt": (24, 1024, 16, 2816, 342.9, 24),
    "c2i_XL_384.pt": (36, 1280, 20, 3584, 774.7, 24),
    "c2i_XXL_384.pt": (48, 1536, 24, 4096, 1411.0, 24),
    "c2i_3B_384.pt": (24, 3200, 32, 8704, 3096.7, 24),
    "t2i_XL_stage1_256.pt": (36, 1280, 20, 3584, 777.9, 16),
    "t2i_XL_stage2_512.pt": (36, 1280, 20, 3584, 777.9, 32),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_need_no_config(name: str) -> None:
    layers, dim, heads, ffn, millions, grid = PUBLISHED[name]
    with torch.device("meta"):
        gpt = LlamaGenGPT(16384, dim, layers, heads, model_type=name[:3], cls_token_num=1 if name[0] == "c" else 120)
    assert gpt.layers[0].feed_forward.w1.out_features == ffn
    found = gpt_config(Path(name), gpt.state_dict(), {})
    assert (found["n_head"], found["grid_size"], found["model_type"]) == (heads, grid, name[:3])
    assert sum(t.numel() for t in gpt.state_dict().values()) / 1e6 == pytest.approx(millions, abs=0.06)


class Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch ran",)


def test_a_pickle_with_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": tiny_checkpoint("c2i"), "args": Payload()}, tmp_path / "evil.pt")
    with pytest.raises(ModelError, match=re.escape("evil.pt' is refused: its pickle calls posix.system")):
        load_gpt(tmp_path / "evil.pt", CONFIG)
    assert not (tmp_path / "ran").exists()


def without(key: str) -> dict[str, Tensor]:
    return {k: v for k, v in tiny_checkpoint("c2i").items() if k != key}


@pytest.mark.parametrize(
    ("content", "config", "error", "message"),
    [
        (without("norm.weight"), CONFIG, ModelError, "does not fit a LlamaGenGPT; missing: norm.weight"),
        (tiny_checkpoint("c2i") | {"extra.w": torch.zeros(1)}, CONFIG, ModelError, "unknown: extra.w"),
        (
            tiny_checkpoint("c2i") | {"norm.weight": torch.zeros(3)},
            CONFIG,
            ModelError,
            "wrong shape: norm.weight [3] instead of [16]",
        ),
        (tiny_checkpoint("c2i"), {"n_head": 2}, ArgumentError, "block_size of"),
        (tiny_checkpoint("c2i"), None, ArgumentError, "n_head and block_size of"),
        (tiny_checkpoint("c2i"), CONFIG | {"block_size": 10}, ArgumentError, "block_size=10 is not allowed"),
        (tiny_checkpoint("c2i"), CONFIG | {"dim": 32}, ModelError, "config has dim=32, the tensors of"),
        (tiny_checkpoint("c2i"), CONFIG | {"n_kv_head": 1}, ModelError, "n_kv_head=1 is not supported"),
        (without("tok_embeddings.weight"), CONFIG, ModelError, "is not a LlamaGen transformer: tok_embeddings.weight"),
        ({"model": {}}, CONFIG, ModelError, "contains no tensors"),
    ],
)
def test_wrong_checkpoints_are_refused(
    tmp_path: Path, content: dict[str, Any], config: dict[str, Any] | None, error: type[MMSpecError], message: str
) -> None:
    torch.save(content, tmp_path / "gpt.pt")
    with pytest.raises(error, match=re.escape(message)):
        load_gpt(tmp_path / "gpt.pt", config)


def test_files_that_are_not_checkpoints_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(ModelError, match=r"text\.pt' (is refused|cannot be read)"):
        load_gpt(tmp_path / "text.pt")
    with pytest.raises(ModelError, match="does not exist"):
        load_gpt(tmp_path / "none.pt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="neither a saved pipeline"):
        mmspec.load(str(tmp_path / "empty"))
    torch.save(tiny_checkpoint("c2i"), tmp_path / "gpt.pt")
    with pytest.raises(ModelError, match="is not a LlamaGen tokenizer: quantize.embedding.weight is missing"):
        mmspec.load(str(tmp_path / "gpt.pt"), tokenizer=str(tmp_path / "gpt.pt"), config=CONFIG)
    with pytest.raises(ArgumentError, match="tokenizer was given, but 'shapes' does not take it"):
        mmspec.load("shapes", tokenizer="x.pt")


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    torch.save(tiny_checkpoint("c2i"), tmp_path / "gpt.pt")
    with pytest.raises(ModelError, match="has 64 codes, the transformer 24; they do not belong together"):
        mmspec.load(str(tmp_path / "gpt.pt"), tokenizer=str(VQ), config=CONFIG)


def test_a_joined_pipeline_is_saved_and_loaded(tmp_path: Path) -> None:
    torch.save({"model": tiny_checkpoint("c2i", 64)}, tmp_path / "gpt.pt")
    pipe = quiet(mmspec.load(str(tmp_path / "gpt.pt"), tokenizer=str(VQ), config=CONFIG))
    assert pipe.config.guidance_scale == 4.0 and pipe.config.top_k == 2000
    out = pipe(class_labels=[3, 1], seed=0, num_images_per_prompt=2)
    assert [image.size for image in out.images] == [(48, 48)] * 4 and out.tokens.shape == (4, 9)
    pipe.save_pretrained(tmp_path / "saved")
    again = quiet(mmspec.load(str(tmp_path / "saved")))
    same = again(class_labels=[3, 1], seed=0, num_images_per_prompt=2, output_type="np").images
    assert np.array_equal(same, pipe(class_labels=[3, 1], seed=0, num_images_per_prompt=2, output_type="np").images)


def test_the_convert_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"module": tiny_checkpoint("c2i")}, tmp_path / "gpt.pt")
    (tmp_path / "args.json").write_text(json.dumps(CONFIG))
    words = ["convert", str(tmp_path / "gpt.pt"), "-o", str(tmp_path / "out")]
    assert main(words) == 2
    assert "n_head and block_size" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert main([*words, "--config", str(tmp_path / "args.json")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out'}\n"
    pipes = [mmspec.load(str(tmp_path / "out")), mmspec.load(str(tmp_path / "gpt.pt"), config=CONFIG)]
    tokens = [quiet(pipe)(class_labels=2, seed=1, output_type="latent").tokens for pipe in pipes]
    assert torch.equal(*tokens)
    assert main([*words, "--config", str(tmp_path / "args.json")]) == 2
    assert "already exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ({}, ArgumentError, "exactly one of prompt, class_labels and prompt_embeds is required; got none"),
        ({"prompt": "a", "class_labels": 1}, ArgumentError, "got prompt and class_labels"),
        ({"prompt": "a"}, PromptError, "prompt=['a'] is not allowed; give numbers of classes, 0 to 4"),
        ({"class_labels": [5]}, ArgumentError, "class_labels has 5, which is not allowed; labels are 0 to 4"),
        ({"class_labels": []}, PromptError, "class_labels=[] is empty"),
        ({"class_labels": 1, "output_type": "pil"}, ArgumentError, "requires a vqvae, and this pipeline has none"),
    ],
)
def test_bad_calls_of_a_class_conditional_model_are_refused(
    tmp_path: Path, call: dict[str, Any], error: type[MMSpecError], message: str
) -> None:
    torch.save(tiny_checkpoint("c2i"), tmp_path / "gpt.pt")
    pipe = quiet(mmspec.load(str(tmp_path / "gpt.pt"), config=CONFIG))
    with pytest.raises(error, match=re.escape(message)):
        pipe(**({"output_type": "latent"} | call))


def test_bad_features_of_a_text_conditional_model_are_refused(tmp_path: Path) -> None:
    torch.save(tiny_checkpoint("t2i"), tmp_path / "gpt.pt")
    pipe = quiet(mmspec.load(str(tmp_path / "gpt.pt"), config=CONFIG))
    assert pipe(prompt_embeds=torch.randn(2, 4, 6), output_type="latent", seed=0).tokens.shape == (2, 9)
    for call, message in (
        ({"prompt_embeds": torch.zeros(1, 3, 6)}, "prompt_embeds has shape [1, 3, 6]; it must be [B, 4, 6]"),
        (
            {"prompt_embeds": torch.zeros(1, 4, 6), "prompt_attention_mask": torch.ones(1, 3)},
            "prompt_attention_mask has shape [1, 3]; it must be [1, 4]",
        ),
        ({"prompt": "a"}, "this pipeline has no text_encoder"),
        ({"class_labels": 1}, "this model is text-conditional"),
    ):
        with pytest.raises(ArgumentError, match=re.escape(message)):
            pipe(**call, output_type="latent")


def test_dtypes_of_original_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tensors = tiny_checkpoint("c2i")
    torch.save(tensors, tmp_path / "gpt.pt")
    torch.save({k: v.bfloat16() for k, v in tensors.items()}, tmp_path / "half.pt")
    dtypes = {
        ("gpt.pt", None): torch.float32, ("gpt.pt", "auto"): torch.float32, ("gpt.pt", torch.bfloat16): torch.bfloat16,
        ("half.pt", None): torch.float32, ("half.pt", "auto"): torch.bfloat16,
    }  # fmt: skip
    for (file, given), dtype in dtypes.items():
        capfd.readouterr()
        pipe = mmspec.load(str(tmp_path / file), config=CONFIG, dtype=given)
        assert pipe.transformer.dtype == dtype
        if file == "gpt.pt" and given != torch.bfloat16:
            assert "float32" not in capfd.readouterr().err  # diffusers warns of casts
    with pytest.raises(ArgumentError, match="dtype='bf16' is not allowed; use a torch.dtype, or 'auto'"):
        from_checkpoints(tmp_path / "gpt.pt", config=CONFIG, dtype="bf16")


def test_the_tokenizer_stays_in_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(tiny_checkpoint("c2i"), tmp_path / "gpt.pt")
    vqvae = VQModel(num_vq_embeddings=24, vq_embed_dim=8, latent_channels=8, block_out_channels=(32,))
    monkeypatch.setattr("mmspec.vision.llamagen.from_checkpoints.load_tokenizer", lambda path: vqvae)
    pipe = mmspec.load(
        str(tmp_path / "gpt.pt"), tokenizer=str(tmp_path / "gpt.pt"), config=CONFIG, dtype=torch.bfloat16
    )
    assert pipe.transformer.dtype == torch.bfloat16 and pipe.vqvae.dtype == torch.float32


def test_a_folder_with_several_files_names_the_way_out(tmp_path: Path) -> None:
    for name in ("c2i_B_256.pt", "vq_ds16_c2i.pt"):
        torch.save(tiny_checkpoint("c2i"), tmp_path / name)
    with pytest.raises(ModelError, match=r"found c2i_B_256.pt, vq_ds16_c2i.pt. Name one: FOLDER/FILE, or OWNER/REPO"):
        mmspec.load(str(tmp_path))
