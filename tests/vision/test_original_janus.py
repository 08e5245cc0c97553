"""Janus in DeepSeek's layout: the tensors, the chat and the codes of a folder as published."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import Qwen2Tokenizer

import mmspec
from mmspec.errors import ModelError
from mmspec.vision.hf import original_janus
from mmspec.vision.hf.original_weights import rename

PUBLISHED = Path(__file__).parents[1] / "published"
# The last steps from names of transformers to DeepSeek's.
BACK = (
    (r"^model\.language_model\.", "language_model.model."),
    (r"^lm_head\.", "language_model.lm_head."),
    (r"^model\.generation_embeddings\.", "gen_embed."),
    (r"^model\.generation_head\.proj_out\.", "gen_head.output_mlp_projector."),
    (r"^model\.generation_head\.", "gen_head."),
    (r"^model\.(generation_)?aligner\.fc1\.", r"\1aligner.layers.0."),
    (r"^model\.(generation_)?aligner\.hidden_layers\.0\.", r"\1aligner.layers.2."),
    (r"^generation_aligner", "gen_aligner"),
    (r"^model\.vqmodel\.encoder\.down\.", "gen_vision_model.encoder.conv_blocks."),
    (r"^model\.vqmodel\.decoder\.up\.", "gen_vision_model.decoder.conv_blocks."),
    (r"^model\.vqmodel\.", "gen_vision_model."),
    (r"^(gen_vision_model.*conv_blocks\.\d+\.)block\.", r"\1res."),
    (r"^(gen_vision_model\.\w+\.mid)\.block_1\.", r"\1.0."),
    (r"^(gen_vision_model\.\w+\.mid)\.attn_1\.", r"\1.1."),
    (r"^(gen_vision_model\.\w+\.mid)\.block_2\.", r"\1.2."),
    (r"^model\.vision_model\.embeddings\.position_embedding\.weight$", "vision_model.vision_tower.pos_embed"),
    (r"^model\.vision_model\.embeddings\.patch_embedding\.", "vision_model.vision_tower.patch_embed.proj."),
    (r"^model\.vision_model\.post_layernorm\.", "vision_model.vision_tower.norm."),
    (r"^model\.vision_model\.encoder\.layers\.", "vision_model.vision_tower.blocks."),
    (r"\.self_attn\.projection_layer\.", ".attn.proj."),
    (r"(vision_tower.*)\.layer_norm([12])\.", r"\1.norm\2."),
)


def original(model: Any) -> dict[str, Tensor]:
    """The tensors of a model under DeepSeek's names, with fused attention in the vision tower."""
    found: dict[str, Tensor] = {}
    for key, value in model.state_dict().items():
        name = rename(key, BACK)
        if (match := re.fullmatch(r"(vision_model\.vision_tower\..*)\.self_attn\.([qkv])_proj\.(\w+)", name)) is None:
            found[name] = value[None] if name.endswith("pos_embed") else value
        elif match[2] == "q":
            parts = [model.state_dict()[key.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            found[f"{match[1]}.attn.qkv.{match[3]}"] = torch.cat(parts)
    found["vision_model.vision_tower.attn_pool.latent"] = torch.zeros(1, 1, 4)
    found["gen_vision_model.quantize.codebook_used"] = torch.zeros(3)
    return found


def folder_of(model: Any, folder: Path) -> Path:
    """A folder as DeepSeek publishes one, with the published config's values of everything but sizes."""
    config = json.loads((PUBLISHED / "janus-pro-7b" / "config.json").read_text())
    text, width, codes = model.config.text_config, model.config.text_config.hidden_size, 20
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    config["language_config"] |= {name: getattr(text, name) for name in (*names, "num_key_value_heads")}
    for part in ("aligner", "gen_aligner"):
        config[f"{part}_config"]["params"] |= {"n_embed": width}
    config["gen_head_config"]["params"] |= {"image_token_embed": width, "image_token_size": codes, "n_embed": width}
    config["gen_vision_config"]["params"] |= {"image_token_size": codes}
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(original(model), folder / "pytorch_model.bin")
    alphabet = {letter: 20 + i for i, letter in enumerate(sorted(ByteLevel.alphabet()))}
    marks = {original_janus.PAD: 0, "<s>": 1, "</s>": 2, original_janus.BEGIN: 3, original_janus.IMAGE: 4}
    marks |= {original_janus.END: 5, "<|User|>": 6, "<|Assistant|>": 7}
    tokenizer = Qwen2Tokenizer(
        vocab=marks | {f"unused {n}": n for n in range(8, 20)} | alphabet, merges=[], bos_token="<s>", eos_token="</s>",
        pad_token=original_janus.PAD, unk_token="</s>",
    )  # fmt: skip
    tokenizer.add_special_tokens({"additional_special_tokens": list(marks)})
    tokenizer._tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps({"num_image_tokens": 16, "sft_format": "deepseek"}))
    return folder


@pytest.mark.releases
def test_a_folder_of_deepseek_is_the_converted_model(tmp_path: Path) -> None:
    model = tiny_models.janus(vocab_size=300)
    pipe = mmspec.load(folder_of(model, tmp_path))
    pipe.set_progress_bar_config(disable=True)
    state = pipe.model.state_dict()
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    prompts = ["a red dog", " a cat on the moon "]
    tokenizer = pipe.processor.tokenizer
    expected = [f"<|User|>: {text.strip()}\n\n<|Assistant|>:{original_janus.BEGIN}" for text in prompts]
    call: dict[str, Any] = {"temperature": 0, "output_type": "latent"}
    found = pipe(prompts, recipe="scd:window=5", **call).tokens
    for row, text in enumerate(expected):
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        assert ids[0, 0] == 1 and ids[0, -1] == 3
        model.generation_config = pipe.model.generation_config
        own = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), generation_mode="image", do_sample=False,
            guidance_scale=5.0,
        )  # fmt: skip
        assert torch.equal(found[row], own[0])
    assert pipe(prompts[:1], seed=0).images[0].size == (8, 8)
    pipe.processor.save_pretrained(tmp_path / "processor")
    again = mmspec.load(tmp_path, processor=tmp_path / "processor")
    again.set_progress_bar_config(disable=True)
    assert torch.equal(again(prompts, **call).tokens, found)


def test_tensors_that_shared_their_memory_are_saved(tmp_path: Path) -> None:
    folder = folder_of(tiny_models.janus(vocab_size=300), tmp_path)
    tensors = torch.load(folder / "pytorch_model.bin")
    tensors["language_model.lm_head.weight"] = tensors["language_model.model.embed_tokens.weight"]
    torch.save(tensors, folder / "pytorch_model.bin")
    pipe = mmspec.load(folder)
    pipe.save_pretrained(tmp_path / "saved")
    again = mmspec.load(tmp_path / "saved").model.state_dict()
    state = pipe.model.state_dict()
    assert state.keys() == again.keys() and all(torch.equal(again[key], value) for key, value in state.items())


def test_broken_folders_are_answered(tmp_path: Path) -> None:
    folder = folder_of(tiny_models.janus(vocab_size=300), tmp_path)
    tensors = torch.load(folder / "pytorch_model.bin")
    del tensors["gen_embed.weight"]
    torch.save(tensors, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"missing: model\.generation_embeddings\.weight"):
        mmspec.load(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match="has no weights"):
        mmspec.load(folder)
