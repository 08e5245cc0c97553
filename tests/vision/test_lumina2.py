"""Lumina-mGPT 2.0: folders of its own layout, prompts, greedy codes of its original loop, and its MoVQ decoder."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from diffusers import VQModel
from safetensors.torch import load_file, save_file
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from transformers import ChameleonConfig, ChameleonForConditionalGeneration, Qwen2Tokenizer

import mmspec
from mmspec.errors import ArgumentError, ModelError
from mmspec.sampling.params import SamplingParams
from mmspec.vision.hf.flat_formats import FORMATS
from mmspec.vision.hf.vqgan import load_vqgan
from mmspec.vision.llamagen.codes import decode_tokens

FIRST, CODES = 320, 20
PROMPTS = ["a red dog", "the cat on a red moon", "cat"]
SIZE = {"height": 32, "width": 64}  # lines of 8 codes, 4 of them


def tokenizer() -> Any:
    vocabulary = {name: i for i, name in enumerate([*sorted(ByteLevel.alphabet()), "<|endoftext|>"])}
    found: Any = Qwen2Tokenizer(vocab=vocabulary, merges=[])
    marks = ["<racm3:break>", "<eoss>", "<reserved08706>", "<reserved08799>", "<reserved08801>", "<reserved08802>"]
    found.add_special_tokens({"additional_special_tokens": marks})
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The published layout: norms that heads share, no encoder of images, no vocabulary in the config."""
    monkeypatch.setitem(FORMATS, "lumina2", replace(FORMATS["lumina2"], first=FIRST, codes=CODES))
    monkeypatch.setattr("mmspec.vision.hf.from_pretrained.FIRST_IDS", 300)
    config = ChameleonConfig(
        **tiny_models.TEXT, vocab_size=FIRST + CODES + 4, max_position_embeddings=512, vocabulary_map={},
        vq_config=tiny_models.VQ, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = tiny_models.scatter(ChameleonForConditionalGeneration(config), 0, 0.3)
    model.save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    tensors: dict[str, Tensor] = {}
    for name, value in load_file(file).items():
        if not name.startswith("model.vqmodel."):
            shared = re.search("[qk]_norm", name)
            tensors[name] = (
                torch.randn(1, 8, generator=torch.Generator().manual_seed(len(tensors))) if shared else value
            )
    save_file(tensors, file, {"format": "pt"})
    published = json.loads((tmp_path / "model" / "config.json").read_text())
    published |= {"architectures": ["ChameleonXLLMXForConditionalGeneration"], "rope_theta": 10000.0}
    for name in ("vocabulary_map", "rope_parameters"):
        published.pop(name, None)
    (tmp_path / "model" / "config.json").write_text(json.dumps(published))
    return tmp_path / "model"


def load(folder: Path, **options: Any) -> Any:
    pipe = mmspec.load(folder, **options)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@torch.no_grad()
def original(model: Any, prompt: str) -> Tensor:
    """Greedy codes by the loop of the original code: two sequences, without cache or padding, and a scale of 4."""
    names = tokenizer()
    question = f"Generate an image of 64x32 according to the following prompt:\n{prompt}<reserved08706>"
    begin = [names.convert_tokens_to_ids(name) for name in ("<racm3:break>", "<reserved08801>", "<reserved08802>")]
    cond = [names.eos_token_id, *names(question, add_special_tokens=False)["input_ids"], *begin]
    uncond, codes = list(begin), []
    for place in range(32):
        # The class itself forbids codes; its head is read directly.
        sides = [
            model.lm_head(model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]) for ids in (cond, uncond)
        ]
        code = int((4 * (sides[0] - sides[1]) + sides[1])[FIRST : FIRST + CODES].argmax())
        codes.append(code)
        new = [FIRST + code] + ([names.convert_tokens_to_ids("<reserved08799>")] if place % 8 == 7 else [])
        cond, uncond = cond + new, uncond + new
    return torch.tensor(codes)


@pytest.mark.releases
def test_greedy_is_the_original_loop(folder: Path, tmp_path: Path) -> None:
    pipe = load(folder)
    assert pipe.config.layout == "lumina2" and type(pipe.model) is ChameleonForConditionalGeneration
    call: dict[str, Any] = {**SIZE, "temperature": 0, "output_type": "latent"}
    found = pipe(PROMPTS, **call, recipe="scd:window=6").tokens
    assert torch.equal(found, torch.stack([original(pipe.model, prompt) for prompt in PROMPTS]))
    pipe.save_pretrained(tmp_path / "saved")
    assert torch.equal(load(tmp_path / "saved")(PROMPTS, **call).tokens, found)
    with pytest.raises(ArgumentError, match="tokenizer= movqgan_270M.ckpt of ai-forever/MoVQGAN"):
        pipe("cat", **SIZE)
    with pytest.raises(ArgumentError, match="as multiples of 32 pixels"):
        pipe("cat", height=40, width=64, output_type="latent")


def test_norms_that_heads_share_are_repeated(folder: Path) -> None:
    """Those of the first generation too, whose class is the same."""
    norm = load(folder).model.model.layers[1].self_attn.k_norm
    file = load_file(folder / "model.safetensors")["model.layers.1.self_attn.k_norm.weight"]
    assert norm.weight.shape == (2, 8) and torch.equal(norm.weight, file.repeat(2, 1))
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"missing: lm_head.weight"):
        load(folder)


def test_sampling_and_sizes_are_those_of_the_original_code() -> None:
    """The ids of the published vocabulary: codes from 155000 to 171383, sizes in steps of 32 pixels."""
    own = FORMATS["lumina2"]
    assert own.sampling == SamplingParams(top_k=4096, guidance_scale=4.0) and own.grid == (96, 96)
    assert own.first_id(None) == 155000 and own.codes == 171383 - 155000 + 1
    text = own.prompt.format(prompt="a dog", begin="<|endoftext|>", **own.size(96, 48))
    assert text == (
        "<|endoftext|>Generate an image of 384x768 according to the following prompt:\na dog<reserved08706>"
        "<racm3:break><reserved08824><reserved08812>"
    )


def original_name(name: str) -> str:
    """The name in the original MoVQ of a parameter of diffusers, for three resolutions."""
    for pattern, new in (
        (r"down_blocks\.(\d)\.", r"down.\1."),
        (r"up_blocks\.(\d)\.", lambda match: f"up.{2 - int(match[1])}."),
        (r"(down|up)samplers\.0", r"\1sample"),
        (r"mid_block\.resnets\.(\d)", lambda match: f"mid.block_{int(match[1]) + 1}"),
        (r"mid_block\.attentions\.0", "mid.attn_1"),
        (r"resnets", "block"), (r"attentions", "attn"), (r"spatial_norm", "norm"), (r"group_norm", "norm"),
        (r"to_([qkv])", r"\1"), (r"to_out\.0", "proj_out"), (r"conv_shortcut", "nin_shortcut"),
        (r"conv_norm_out", "norm_out"),
    ):  # fmt: skip
        name = re.sub(pattern, new, name)
    return name


def test_the_decoder_is_a_movq(tmp_path: Path) -> None:
    """The numbers of the original network were compared once; here the names, and norms that depend on the codes."""
    torch.manual_seed(0)
    kinds = ["DownEncoderBlock2D", "DownEncoderBlock2D", "AttnDownEncoderBlock2D"]
    vq = VQModel(
        block_out_channels=(32, 32, 64), down_block_types=kinds, layers_per_block=1, latent_channels=4,
        up_block_types=["AttnUpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D"], num_vq_embeddings=CODES,
        vq_embed_dim=4, norm_type="spatial", lookup_from_codebook=True,
    ).eval()  # fmt: skip
    original = {original_name(name): value for name, value in vq.state_dict().items()}
    attention = [name for name in original if re.search(r"attn.*\.(q|k|v|proj_out)\.weight", name)]
    original |= {name: original[name][:, :, None, None] for name in attention}
    torch.save({**original, "loss.logvar": torch.zeros(1)}, tmp_path / "movqgan.ckpt")
    codes, found = torch.randint(CODES, (2, 12)), load_vqgan(tmp_path / "movqgan.ckpt")
    assert found.config.norm_type == "spatial"
    assert torch.equal(decode_tokens(found, codes, (3, 4)), decode_tokens(vq, codes, (3, 4)))
