"""Pipelines of transformers models: tiny random models with the real processors, against the models' own generate."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny_models
import tiny_processors
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from transformers import ChameleonConfig, LlamaConfig, LlamaForCausalLM, OPTConfig, OPTForCausalLM

import mmspec
from mmspec.cli.app import main
from mmspec.decoding.step import Step
from mmspec.errors import ArgumentError, MMSpecError, ModelError, PromptError
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.vision.hf.decoding.chameleon import ChameleonIds
from mmspec.vision.hf.flat_formats import EMU3_NEGATIVE as NEGATIVE
from mmspec.vision.hf.vqgan import load_vqgan
from mmspec.vision.llamagen.codes import decode_tokens

PROMPTS = ["a red dog", "cat"]
GREEDY: dict[str, Any] = {"temperature": 0, "recipe": "scd:window=6", "seed": 0}


def load(model: Any, **options: Any) -> Any:
    pipe = mmspec.load(model, **options)
    pipe.set_progress_bar_config(disable=True)
    return pipe


# --- Images against the code of the model cards ----------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A model class.

    Attributes:
        model: Makes a tiny model.
        processor: Makes its processor.
        options: Arguments of the pipeline.
        own: Greedy codes and images of the model's own generate, called as on its model card.
    """

    model: Callable[[], Any]
    processor: Callable[[], Any]
    options: dict[str, Any]
    own: Callable[[Any, Any, list[str]], tuple[Tensor, Any]]


def janus_card(model: Any, processor: Any, prompts: list[str]) -> tuple[Tensor, Any]:
    chats = [[{"role": "user", "content": [{"type": "text", "text": text}]}] for text in prompts]
    texts = processor.apply_chat_template(chats, add_generation_prompt=True)
    inputs = processor(text=texts, generation_mode="image", padding=True, padding_side="left", return_tensors="pt")
    assert inputs["attention_mask"].all() == (len(set(map(len, map(str.split, prompts)))) == 1)
    tokens = model.generate(**inputs, generation_mode="image", do_sample=False, guidance_scale=5.0)
    pixels = model.decode_image_tokens(tokens).permute(0, 3, 1, 2).float()
    return tokens, processor.postprocess(list(pixels), return_tensors="PIL.Image.Image")["pixel_values"]


def emu3_card(model: Any, processor: Any, prompts: list[str]) -> tuple[Tensor, Any]:
    inputs = processor(
        text=prompts, padding=True, padding_side="left", return_tensors="pt", return_for_image_generation=True,
        ratio="1:1", image_area=1024,
    )  # fmt: skip
    # As in BAAI's image_generation.py: the unconditional prompt ends with the beginning of the image too.
    negative = processor(
        text=[NEGATIVE] * len(prompts), return_tensors="pt", return_for_image_generation=True, ratio="1:1",
        image_area=1024,
    )  # fmt: skip
    height, width = inputs.pop("image_sizes")[0]

    def allowed(row: int, ids: Tensor) -> Any:
        offset = len(ids) - int((ids == 3).nonzero()[0, 0])
        if offset % (width + 1) == 0:
            return (4,)
        if offset > (width + 1) * height:
            return ({1: 5, 2: 6, 3: 2}.get(offset - (width + 1) * height, 0),)
        return model.vocabulary_mapping.image_tokens

    out = model.generate(
        **inputs,
        max_new_tokens=height * (width + 1) + 3,
        prefix_allowed_tokens_fn=allowed,
        do_sample=False,
        guidance_scale=3.0,
        negative_prompt_ids=negative.input_ids,
        negative_prompt_attention_mask=negative.attention_mask,
    )
    tokens = out[:, inputs["input_ids"].shape[1] :]
    pixels = model.decode_image_tokens(image_tokens=tokens, height=height, width=width).float()
    codes = tokens[:, :-3].view(-1, height, width + 1)[..., :-1].flatten(1) - 10
    return codes, processor.postprocess(list(pixels), return_tensors="PIL.Image.Image")["pixel_values"]


def imagegpt_card(model: Any, processor: Any, prompts: list[str]) -> tuple[Tensor, Any]:
    start = torch.full((len(prompts), 1), model.config.vocab_size - 1)
    tokens = model.generate(input_ids=start, max_length=model.config.n_positions + 1, do_sample=False)[:, 1:]
    side = processor.size["height"]
    colours = np.rint(127.5 * (np.asarray(processor.clusters)[tokens.numpy()] + 1.0))
    return tokens, [Image.fromarray(p.reshape(side, side, 3).astype(np.uint8)) for p in colours]


def glm_card(model: Any, processor: Any, prompts: list[str]) -> tuple[Tensor, Any]:
    """The call of diffusers' pipeline."""
    chats = [[{"role": "user", "content": [{"type": "text", "text": text}]}] for text in prompts]
    inputs = processor.apply_chat_template(
        chats,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        processor_kwargs={"padding": True, "padding_side": "left", "target_h": 64, "target_w": 96},
    )
    small = int(inputs["image_grid_thw"][1].prod())
    start = inputs["input_ids"].shape[1]
    codes = range(20)
    out = model.generate(
        **inputs,
        max_new_tokens=small + 6 + 1,
        do_sample=False,
        prefix_allowed_tokens_fn=lambda row, ids: codes if len(ids) < start + small + 6 else [21],
    )
    return out[:, start + small : start + small + 6], None


CASES = {
    "janus": Case(tiny_models.janus, tiny_processors.janus, {}, janus_card),
    "emu3": Case(tiny_models.emu3, tiny_processors.emu3, {"height": 32, "width": 32}, emu3_card),
    "imagegpt": Case(tiny_models.imagegpt, tiny_processors.imagegpt, {}, imagegpt_card),
    "glm": Case(tiny_models.glm, tiny_processors.glm, {"height": 64, "width": 96, "output_type": "latent"}, glm_card),
}


@pytest.mark.releases
@pytest.mark.parametrize("name", CASES)
def test_images_equal_those_of_the_models_own_generate(name: str) -> None:
    case = CASES[name]
    model, processor = case.model(), case.processor()
    prompts = ["", ""] if name == "imagegpt" else PROMPTS
    tokens, images = case.own(model, processor, prompts)
    out = load(model, processor=processor)(prompts, **case.options, **GREEDY)
    assert out.tokens.dtype == torch.int64 and torch.equal(out.tokens, tokens)
    assert out.stats.tokens >= tokens.numel() and out.seeds == [0, 1]
    if images is None:
        assert torch.equal(out.images, out.tokens)
    else:
        assert len(set(tokens.flatten().tolist())) > 2  # a constant image would hide mistakes
        for ours, expected in zip(out.images, images, strict=True):
            assert ours.mode == "RGB" and np.array_equal(np.asarray(ours), np.asarray(expected))


# --- Chameleon, whose own generate returns no image tokens -----------------------------------------------------------


def greedy_chameleon(model: Any, prompt: list[int], negative: list[int], pattern: list[list[int]]) -> list[int]:
    """The most likely allowed token at each position with guidance 3, computed from the whole sequence every time."""
    made: list[int] = []
    for allowed in pattern:
        cond, uncond = (
            model.lm_head(model.model(input_ids=torch.tensor([side + made])).last_hidden_state[0, -1])
            for side in (prompt, negative)
        )
        scores = uncond + 3 * (cond - uncond)
        made.append(max(allowed, key=lambda token: float(scores[token])))
    return made


@pytest.mark.releases
@torch.no_grad()
@pytest.mark.parametrize("layout", ["anole", "lumina"])
def test_chameleon_layouts(layout: str) -> None:
    model, processor = tiny_models.chameleon(), tiny_processors.chameleon()
    codes = list(range(4, 24))
    pipe = load(model, processor=processor, config={"layout": layout})
    options: dict[str, Any] = {} if layout == "anole" else {"height": 8, "width": 12}
    # "Generate an image of 12x8 according to the following prompt:" has 14 words and marks, all but one unknown.
    head = (
        []
        if layout == "anole"
        else processor.tokenizer("Generate an image of 12x8 according to the following prompt:\n")["input_ids"][1:]
    )
    out = pipe(PROMPTS, **options, output_type="latent", **GREEDY)
    for row, words in enumerate([[33, 34, 36], [37]]):
        prompt = [0, *head, *words, 26, 25]
        if layout == "anole":
            made = greedy_chameleon(model, prompt, [0, 25], [codes] * 16 + [[24]])[:16]
        else:
            pattern = [[28 + 2], [28 + 3]] + ([codes] * 6 + [[27]]) * 4 + [[24], [26]]
            made = [t for t in greedy_chameleon(model, prompt, [25], pattern)[2:-2] if t != 27]
        # A token's name spells its code in letters; the ids of this vocabulary are the codes plus 4.
        assert out.tokens[row].tolist() == [token - 4 for token in made]
        assert len(set(made)) > 2


def decode_by_hand(tensors: dict[str, Tensor], codes: Tensor) -> Tensor:
    """Pixels [B, 3, H, W] of codes int64 [B, h, w], computed layer by layer under the original names."""

    def conv(name: str, x: Tensor) -> Tensor:
        weight = tensors[f"{name}.weight"]
        return F.conv2d(x, weight, tensors[f"{name}.bias"], padding=weight.shape[-1] // 2)

    def norm(name: str, x: Tensor) -> Tensor:
        groups = x.unflatten(1, (32, -1))
        mean = groups.mean((2, 3, 4), keepdim=True)
        variance = groups.var((2, 3, 4), keepdim=True, correction=0)
        x = ((groups - mean) / (variance + 1e-6).sqrt()).flatten(1, 2)
        return x * tensors[f"{name}.weight"][:, None, None] + tensors[f"{name}.bias"][:, None, None]

    def swish(x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)

    def block(name: str, x: Tensor) -> Tensor:
        y = conv(f"{name}.conv1", swish(norm(f"{name}.norm1", x)))
        y = conv(f"{name}.conv2", swish(norm(f"{name}.norm2", y)))
        return y + (conv(f"{name}.nin_shortcut", x) if f"{name}.nin_shortcut.weight" in tensors else x)

    def attention(name: str, x: Tensor) -> Tensor:
        q, k, v = (conv(f"{name}.{part}", norm(f"{name}.norm", x)).flatten(2) for part in "qkv")
        weights = torch.einsum("bci,bcj->bij", q, k).mul(q.shape[1] ** -0.5).softmax(-1)
        return x + conv(f"{name}.proj_out", torch.einsum("bij,bcj->bci", weights, v).view_as(x))

    x = conv("post_quant_conv", tensors["quantize.embedding.weight"][codes].permute(0, 3, 1, 2))
    x = block("decoder.mid.block_1", conv("decoder.conv_in", x))
    x = block("decoder.mid.block_2", attention("decoder.mid.attn_1", x))
    levels = {int(key.split(".")[2]) for key in tensors if key.startswith("decoder.up.")}
    for level in sorted(levels, reverse=True):
        i = 0
        while f"decoder.up.{level}.block.{i}.conv1.weight" in tensors:
            x = block(f"decoder.up.{level}.block.{i}", x)
            if f"decoder.up.{level}.attn.{i}.q.weight" in tensors:
                x = attention(f"decoder.up.{level}.attn.{i}", x)
            i += 1
        if level:
            x = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
            x = conv(f"decoder.up.{level}.upsample.conv", x)
    return conv("decoder.conv_out", swish(norm("decoder.norm_out", x)))


BIG: dict[str, Any] = {
    "embed_dim": 8, "num_embeddings": 20, "latent_channels": 16, "base_channels": 32, "channel_multiplier": [1, 2, 2],
    "num_res_blocks": 2, "resolution": 16,
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("attention", [[], [8]])
def test_the_vqgan_equals_the_original_network(attention: list[int], tmp_path: Path) -> None:
    vq, tensors = tiny_models.vqgan(**BIG, attn_resolutions=attention)
    torch.save({"state_dict": tensors | {"loss.discriminator.main.0.weight": torch.zeros(3)}}, tmp_path / "vqgan.ckpt")
    ours = load_vqgan(tmp_path / "vqgan.ckpt")
    codes = torch.randint(20, (2, 3, 5))
    expected = decode_by_hand(tensors, codes)
    assert expected.std() > 0.1 and expected.shape == (2, 3, 12, 20)
    assert torch.allclose(decode_tokens(ours, codes.flatten(1), (3, 5)), expected, atol=1e-5)
    images = torch.rand(2, 3, 16, 16) * 2 - 1
    found = ours.quantize(ours.encode(images).latents)[2][2]
    assert torch.equal(found.flatten(), vq.encode(images).image_tokens.flatten())


def test_wrong_vqgans_are_refused(tmp_path: Path) -> None:
    _, tensors = tiny_models.vqgan(**BIG)
    wrong = {
        "is not a VQGAN: decoder.conv_in.weight is missing": {k: v for k, v in tensors.items() if "decoder" not in k},
        "missing: decoder.conv_norm_out.bias": {k: v for k, v in tensors.items() if k != "decoder.norm_out.bias"},
        "unknown: decoder.extra": tensors | {"decoder.extra": torch.zeros(1)},
        "wrong shape: decoder.conv_out.bias [4] instead of [3]": tensors | {"decoder.conv_out.bias": torch.zeros(4)},
    }
    for message, content in wrong.items():
        torch.save({"state_dict": content}, tmp_path / "vqgan.ckpt")
        with pytest.raises(ModelError, match=re.escape(message)):
            load_vqgan(tmp_path / "vqgan.ckpt")
    torch.save({"state_dict": tensors}, tmp_path / "vqgan.ckpt")
    with pytest.raises(ModelError, match="tokenizer has 20 codes, the model 12"):
        mmspec.load(
            tiny_models.chameleon(codes=12),
            processor=tiny_processors.chameleon(),
            tokenizer=str(tmp_path / "vqgan.ckpt"),
        )


def test_convert_writes_chameleon_and_its_vqgan_to_one_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, processor = tiny_models.chameleon(), tiny_processors.chameleon()
    for part in (model, processor):
        part.save_pretrained(tmp_path / "model")
    _, tensors = tiny_models.vqgan()
    torch.save({"state_dict": tensors}, tmp_path / "vqgan.ckpt")
    words = ["convert", str(tmp_path / "model"), "--tokenizer", str(tmp_path / "vqgan.ckpt")]
    assert main([*words, "-o", str(tmp_path / "both")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'both'}\n"
    pipe = load(str(tmp_path / "both"))
    out = pipe(PROMPTS, seed=3)
    pixels = decode_by_hand(tensors, out.tokens.view(2, 4, 4)).clamp(-1, 1)
    for image, expected in zip(out.images, (pixels.permute(0, 2, 3, 1) + 1) * 127.5, strict=True):
        assert np.abs(np.asarray(image).astype(float) - expected.numpy()).max() <= 1.01
    file = load(model, processor=processor, tokenizer=str(tmp_path / "vqgan.ckpt"))
    assert np.array_equal(
        file(PROMPTS, seed=3, output_type="np").images, pipe(PROMPTS, seed=3, output_type="np").images
    )


# --- Special ids of the vocabulary -----------------------------------------------------------------------------------


def test_ids_are_found_by_name() -> None:
    assert ChameleonIds.of(tiny_models.chameleon()) == tiny_models.CHAMELEON_IDS
    names = {"<racm3:break>": 8197, "<eoss>": 8196} | {f"<reserved{n:05d}>": n + 4 for n in (8706, 8799, 8800)}
    config = ChameleonConfig(vocabulary_map=names)
    model = SimpleNamespace(config=config)
    assert ChameleonIds.of(model) == ChameleonIds()
    config.vocabulary_map = {"<eoss>": 8196}
    with pytest.raises(ModelError, match=re.escape("vocabulary_map has no '<racm3:break>'")):
        ChameleonIds.of(model)


# --- The call -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def janus() -> Any:
    return load(tiny_models.janus(), processor=tiny_processors.janus())


def test_each_row_has_a_seed(janus: Any) -> None:
    out = janus(PROMPTS, seed=[7, 9], recipe="scd:window=4")
    assert torch.equal(janus("cat", seed=9, recipe="scd:window=4").tokens[0], out.tokens[1])
    again = janus(PROMPTS, seed=7, num_images_per_prompt=2)
    assert again.seeds == [7, 8, 9, 10] and len(again.images) == 4
    assert torch.equal(janus(["a red dog", "a red dog", "cat", "cat"], seed=7).tokens, again.tokens)
    free = janus("cat", generator=torch.Generator().manual_seed(3))
    assert torch.equal(janus("cat", generator=torch.Generator().manual_seed(3)).tokens, free.tokens)


def test_output_types(janus: Any) -> None:
    pil, floats, tensors, latent = (
        janus(PROMPTS, seed=0, output_type=kind).images for kind in ("pil", "np", "pt", "latent")
    )
    assert pil[0].size == (8, 8) and floats.shape == (2, 8, 8, 3) and tensors.shape == (2, 3, 8, 8)
    assert np.array_equal(np.asarray(pil[1]), np.rint(floats[1] * 255)) and tensors.dtype == torch.float32
    assert np.array_equal(tensors.permute(0, 2, 3, 1).numpy(), floats)
    assert latent.shape == (2, 16) and int(latent.max()) < 20
    (images,) = janus("cat", seed=0, return_dict=False)
    assert images[0].size == (8, 8)


def test_callbacks_are_called_after_every_step(janus: Any) -> None:
    steps: list[Step] = []
    calls: list[tuple[Any, int, int, list[str]]] = []
    out = janus(
        PROMPTS,
        seed=0,
        on_step=steps.append,
        callback_on_step_end=lambda *step: calls.append((*step[:3], list(step[3]))),
        measure_entropy=True,
    )
    assert len(steps) == len(calls) == out.stats.target_calls and steps[-1].committed == 32 == out.stats.tokens
    assert calls[-1] == (janus, out.stats.target_calls, 32, ["tokens"]) and 0 < out.stats.entropy < 5


def test_the_generation_config_sets_the_defaults() -> None:
    model = tiny_models.janus()
    model.generation_config.update(temperature=0.7, top_k=9, guidance_scale=2.5)
    pipe = load(model, processor=tiny_processors.janus())
    assert (pipe.config.temperature, pipe.config.top_k, pipe.config.guidance_scale) == (0.7, 9, 2.5)
    out = pipe("cat", seed=1)
    explicit = load(tiny_models.janus(), processor=tiny_processors.janus())
    assert torch.equal(explicit("cat", seed=1, temperature=0.7, top_k=9, guidance_scale=2.5).tokens, out.tokens)
    assert not torch.equal(explicit("cat", seed=1, temperature=0.7, top_k=9, guidance_scale=1).tokens, out.tokens)


def test_min_p_and_typical_p_are_the_models_own_or_the_calls(janus: Any) -> None:
    model = tiny_models.janus()
    model.generation_config.min_p = 1.0  # leaves the most likely token
    own = load(model, processor=tiny_processors.janus())
    greedy, free = janus("cat", temperature=0).tokens, janus("cat", seed=1).tokens
    assert not torch.equal(greedy, free)
    assert torch.equal(own("cat", seed=1).tokens, greedy) and torch.equal(janus("cat", seed=1, min_p=1).tokens, greedy)
    assert torch.equal(own("cat", seed=1, min_p=0).tokens, free)
    typical = janus("cat", seed=1, typical_p=1e-4).tokens
    assert torch.equal(janus("cat", seed=2, typical_p=1e-4).tokens, typical)
    sampling = own.read_request("cat", {"typical_p": 0.5}, parse("scd")).rows[0].sampling
    assert (sampling.min_p, sampling.typical_p) == (1.0, 0.5)


# --- Folders and commands -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(janus: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("janus")
    for part in (janus.model, janus.processor):
        part.save_pretrained(path)
    return path


@pytest.mark.releases
def test_folders_of_models_and_pipelines(janus: Any, folder: Path, tmp_path: Path) -> None:
    expected = janus(PROMPTS, seed=0, output_type="np")
    pipe = load(str(folder))
    pipe.save_pretrained(tmp_path / "saved")
    bare = tmp_path / "bare"
    janus.model.save_pretrained(bare)
    for again in (
        pipe,
        load(str(tmp_path / "saved")),
        load(bare, processor=folder),
        load(bare, processor=pipe.processor),
    ):
        out = again(PROMPTS, seed=0, output_type="np")
        assert torch.equal(out.tokens, expected.tokens) and np.array_equal(out.images, expected.images)
    assert load(str(folder), dtype=torch.bfloat16)("cat", seed=0).images[0].size == (8, 8)


def test_a_hub_id_loads_its_downloaded_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {"deepseek-community/Janus-Pro-1B": folder}
    monkeypatch.setattr("mmspec.hub.fetch", lambda name, revision, check: stored.get(name))
    assert load("deepseek-community/Janus-Pro-1B")("cat", seed=0).images[0].size == (8, 8)


@pytest.mark.releases
def test_a_diffusers_folder_loads_the_first_stage_of_glm_image(tmp_path: Path) -> None:
    model, processor = tiny_models.glm(), tiny_processors.glm()
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "GlmImagePipeline"}))
    model.save_pretrained(tmp_path / "vision_language_encoder")
    processor.save_pretrained(tmp_path / "processor")
    call: dict[str, Any] = {"height": 32, "width": 32, "output_type": "latent", "seed": 0}
    assert torch.equal(load(tmp_path)("cat", **call).tokens, load(model, processor=processor)("cat", **call).tokens)


def test_lumina_mgpts_class_loads_as_chameleon(tmp_path: Path) -> None:
    for part in (tiny_models.chameleon(), tiny_processors.chameleon()):
        part.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["architectures"] = ["ChameleonXLLMXForConditionalGeneration"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    pipe = load(tmp_path)
    assert pipe.config.layout == "lumina"
    assert pipe("cat", height=8, width=16, output_type="latent", seed=0).tokens.shape == (1, 32)


def test_the_image_command(janus: Any, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["image", "cat", "-m", str(folder), "-n", "2", "-o", str(tmp_path / "x.png"), "--seed", "4", "--json"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["stats"]["tokens"] == 32 and err == ""
    expected = janus("cat", seed=4, num_images_per_prompt=2).images
    for i, image in enumerate(expected):
        with Image.open(tmp_path / f"x-{i}.png") as saved:
            assert np.array_equal(np.asarray(saved), np.asarray(image)) and saved.info["seed"] == str(4 + i)


def test_the_bench_command(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Passed:
        ok = True

    monkeypatch.setattr("mmspec.testing.exactness.check", lambda recipe: Passed())
    words = ["bench", "image", "-m", str(folder), "--recipes", "scd:window=4", "--limit", "1", "--batch", "1"]
    assert main([*words, "--repeats", "1", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["settings"]["guidance_scale"] == 5 and [row["recipe"] for row in record["rows"]] == [
        "plain",
        "scd:window=4",
    ]


# --- Errors ---------------------------------------------------------------------------------------------------------

ADAPTERS = re.escape("it has them for JanusForConditionalGeneration, Emu3")


def test_classes_without_an_adapter_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=f"no adapter for Linear; {ADAPTERS}.*docs/adding-a-model.md"):
        mmspec.load(nn.Linear(2, 2))
    config = LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=9)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    sizes = {"vocab_size": 9, "hidden_size": 8, "ffn_dim": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    other = OPTForCausalLM(OPTConfig(**sizes, word_embed_proj_dim=8, max_position_embeddings=8))
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(ArgumentError, match=f"is a OPTForCausalLM, for which mmspec has no adapter; {ADAPTERS}"):
        mmspec.load(tmp_path / "other")
    with pytest.raises(ArgumentError, match="LlamaForCausalLM needs its processor or tokenizer"):
        mmspec.load(tmp_path)
    # Converted LlamaGen files have the same class name.
    stored = json.loads((tmp_path / "config.json").read_text()) | {"block_size": 16, "n_head": 1}
    (tmp_path / "config.json").write_text(json.dumps(stored))
    with pytest.raises(ModelError, match="has no condition embedding"):
        mmspec.load(tmp_path)


def test_a_plug_in_brings_its_own_image_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 2)
    monkeypatch.setattr("mmspec.vision.hf.registry.is_plugin", lambda model: True)
    monkeypatch.setattr("mmspec.vision.hf.registry.adapter_of", lambda model: SimpleNamespace())
    with pytest.raises(ArgumentError, match="Linear has an adapter for model.generate.*, but none for prompts and im"):
        mmspec.load(model)
    adapter = SimpleNamespace(sampling=SamplingParams(temperature=0.5))
    monkeypatch.setattr(
        "mmspec.vision.hf.registry.adapter_of",
        lambda model: SimpleNamespace(image_adapter=lambda model, components: adapter),
    )
    assert mmspec.load(model).config.temperature == 0.5


def test_the_processor_of_a_loaded_model_may_be_its_folder(janus: Any, folder: Path) -> None:
    found = mmspec.load(janus.model, processor=str(folder))(PROMPTS, seed=0, output_type="latent")
    assert torch.equal(found.tokens, janus(PROMPTS, seed=0, output_type="latent").tokens)
    with pytest.raises(ArgumentError, match="processor='.*none' cannot be loaded"):
        mmspec.load(janus.model, processor=folder / "none")


def test_incomplete_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    tiny_models.janus().save_pretrained(tmp_path)
    with pytest.raises(ArgumentError, match="processor is missing for Janus.*; pass processor=JanusProcessor.from_pre"):
        mmspec.load(tmp_path)
    with pytest.raises(ArgumentError, match="processor='.*' cannot be loaded: "):
        mmspec.load(tmp_path, processor=tmp_path)
    with pytest.raises(ArgumentError, match="processor is of class Emu3Processor, where JanusForCond.* needs a Janus"):
        mmspec.load(tmp_path, processor=tiny_processors.emu3())
    model = tiny_models.janus()
    state = {k: v for k, v in model.state_dict().items() if "generation_head" not in k}
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(ModelError, match="is incomplete; missing: model.generation_head"):
        mmspec.load(tmp_path, processor=folder)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="cannot be read"):
        mmspec.load(tmp_path, processor=folder)
    os.remove(tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="has no weights"):
        mmspec.load(tmp_path, processor=folder)


LOADS: list[tuple[str, dict[str, Any], str]] = [
    ("janus", {"tokenizer": "vqgan.ckpt"}, "tokenizer='vqgan.ckpt' does not exist"),
    ("janus", {"config": {"layout": "anole"}}, "layout is not an option of JanusForCond"),
    ("chameleon", {"config": {"layout": "anol"}}, "layout='anol' is not allowed (did you mean 'anole'?); use one of"),
    (
        "chameleon",
        {"config": {"side": 3}},
        "config has 'side', which ChameleonForConditionalGeneration does not have; it may have 'layout'",
    ),
    ("janus", {"device": "cpu"}, "device was given with a loaded model; move or convert the model"),
    ("janus", {"dtype": torch.bfloat16}, "dtype was given with a loaded model; move or convert the model"),
]


@pytest.mark.parametrize(("name", "options", "message"), LOADS)
def test_bad_options_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    model, processor = getattr(tiny_models, name)(), getattr(tiny_processors, name)()
    with pytest.raises(ArgumentError, match=re.escape(message)):
        mmspec.load(model, processor=processor, **options)


def test_a_processor_without_a_transformers_model_is_refused() -> None:
    with pytest.raises(ArgumentError, match="processor was given, but 'shapes' is not a transformers model"):
        mmspec.load("shapes", processor="x")


CALLS: list[tuple[str, Any, dict[str, Any], type[MMSpecError], str]] = [
    ("janus", "cat", {"height": 8}, ArgumentError, "height=8 is not an option of JanusForCond"),
    ("janus", "cat", {"negative_prompt": "dog"}, ArgumentError, "negative_prompt='dog' is not an option of"),
    ("janus", "cat", {"output_type": "jpg"}, ArgumentError, "output_type='jpg' is not allowed; use one of pil"),
    ("janus", "cat", {"num_images_per_prompt": 0}, ArgumentError, "num_images_per_prompt=0 is not allowed"),
    ("janus", "cat", {"temperature": -1}, ArgumentError, "temperature=-1 is not allowed"),
    ("janus", "cat", {"recipe": "draft"}, ArgumentError, "recipe 'draft' needs a draft model"),
    ("janus", ["cat", 3], {}, PromptError, "prompt=3 is not allowed; it must be a string"),
    ("janus", ["cat", " "], {}, PromptError, "prompt=' ' is empty; describe an image"),
    ("janus", None, {}, PromptError, "prompt='' is empty; describe an image"),
    ("janus", [], {}, PromptError, "prompt=[] is empty; give at least one prompt"),
    (
        "emu3",
        "cat",
        {"height": 32},
        ArgumentError,
        "height=32, width=None is not allowed; give both, as multiples of 8",
    ),
    ("emu3", "cat", {"height": 20, "width": 32}, ArgumentError, "height=20, width=32 is not allowed"),
    (
        "emu3",
        "cat",
        {},
        PromptError,
        "prompt has 7 tokens, which is too long: the image has 8193 and the model 60 positions",
    ),
    ("imagegpt", "cat", {}, PromptError, "prompt='cat' is not allowed; ImageGPT takes no prompt"),
    ("chameleon", "cat", {}, ArgumentError, "output_type='pil' is not possible: transformers has no decoder for"),
    (
        "chameleon",
        "cat",
        {"height": 8, "width": 8, "output_type": "latent"},
        ArgumentError,
        "height=8 is not an option",
    ),
    ("glm", "cat", {}, ArgumentError, "output_type='pil' is not possible: the second stage of GLM-Image"),
    (
        "glm",
        "cat",
        {"guidance_scale": 2.0, "output_type": "latent"},
        ArgumentError,
        "guidance_scale=2.0 is not allowed",
    ),
]


@pytest.mark.parametrize(("name", "prompt", "call", "error", "message"), CALLS)
def test_bad_calls_are_refused(
    name: str, prompt: Any, call: dict[str, Any], error: type[Exception], message: str
) -> None:
    config = {"max_position_embeddings": 60} if name == "emu3" else {}
    model, processor = getattr(tiny_models, name)(**config), getattr(tiny_processors, name)()
    with pytest.raises(error, match=re.escape(message)):
        load(model, processor=processor)(prompt, **call)


def test_missing_parts_and_positions_are_refused() -> None:
    processor = tiny_processors.janus()
    processor.chat_template = None
    with pytest.raises(ArgumentError, match=re.escape("processor (JanusProcessor) has no chat_template")):
        load(tiny_models.janus(), processor=processor)("cat")
    short = tiny_models.janus(max_position_embeddings=20)
    pipe = load(short, processor=tiny_processors.janus())
    assert len(pipe("a cat", seed=0).images) == 1
    with pytest.raises(PromptError, match="prompt has 5 tokens, which is too long.*may have at most 4 tokens"):
        pipe(["cat", "a red cat"])
    with pytest.raises(ArgumentError, match="the image processor, which contains the colors, is missing"):
        load(tiny_models.imagegpt())()
    assert load(tiny_models.imagegpt())(output_type="latent", seed=0).tokens.shape == (1, 16)


@pytest.mark.releases
def test_a_diffusers_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "GlmImagePipeline"}))
    with pytest.raises(ModelError, match="vision_language_encoder' does not contain a transformers model"):
        mmspec.load(tmp_path)


def test_a_compiled_model_is_unwrapped() -> None:
    case = CASES["janus"]
    model, processor = case.model(), case.processor()
    expected = load(model, processor=processor)(["cat"], **case.options, **GREEDY).tokens
    compiled = torch.compile(model, backend="eager")
    assert torch.equal(load(compiled, processor=processor)(["cat"], **case.options, **GREEDY).tokens, expected)
