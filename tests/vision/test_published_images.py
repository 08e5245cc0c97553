"""Image models with their published configurations: at full size on the meta device, as folders, and in distribution.

The facts and their sources are in `tests/published`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hf_image_cases
import pytest
import tiny_models
import tiny_processors
import torch
from diffusers import AutoencoderKL, VQModel
from torch import Tensor, nn
from transformers import (
    ChameleonConfig,
    ChameleonForConditionalGeneration,
    Emu3Config,
    Emu3ForConditionalGeneration,
    GenerationConfig,
    GlmImageConfig,
    GlmImageForConditionalGeneration,
    ImageGPTConfig,
    ImageGPTForCausalImageModeling,
    JanusConfig,
    JanusForConditionalGeneration,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import mmspec
from mmspec.files.checkpoint import check_tensors
from mmspec.sampling.params import SamplingParams
from mmspec.vision.hf import vqgan
from mmspec.vision.hf.adapters.glm import GlmAdapter
from mmspec.vision.hf.decoding.chameleon import ChameleonIds, ImageConstraint, codes_of
from mmspec.vision.hf.flat_formats import EMU3_NEGATIVE as NEGATIVE
from mmspec.vision.hf.from_pretrained import alias_of
from mmspec.vision.hf.image_adapter import Components, DecodingJob
from mmspec.vision.hf.image_request import ImageRequest
from mmspec.vision.hf.registry import image_adapter_of
from mmspec.vision.llamagen import tokenizer
from mmspec.vision.llamagen.checkpoint import gpt_config
from mmspec.vision.llamagen.gpt import LlamaGenGPT
from mmspec.vision.mar import kl16

PUBLISHED = Path(__file__).parents[1] / "published"
# What the original code samples with; for GLM-Image its own values, and the top-k of transformers.
SAMPLING = {
    "imagegpt-small": SamplingParams(top_k=40),
    "imagegpt-large": SamplingParams(top_k=40),
    "emu3-gen": SamplingParams(top_k=2048, guidance_scale=3.0),
    "anole-7b-v0.1-hf": SamplingParams(temperature=0.7, top_p=0.9, guidance_scale=3.0),
    "lumina-mgpt-7b-768": SamplingParams(top_k=2000, guidance_scale=3.0),
    "janus-pro-1b": SamplingParams(guidance_scale=5),
    "glm-image": SamplingParams(temperature=0.9, top_k=50, top_p=0.75),
}


def read(name: str, file: str = "config.json") -> dict[str, Any]:
    path = PUBLISHED / name / file
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found


def on_meta(kind: Any, config: Any, name: str) -> Any:
    with torch.device("meta"):
        model = kind(config)
    model.generation_config = GenerationConfig(**read(name, "generation_config.json"))
    return model


def billions(model: Any) -> float:
    return sum(p.numel() for p in model.parameters()) / 1e9


# --- Full size ------------------------------------------------------------------------------------------------------


@pytest.mark.releases
@pytest.mark.parametrize(("name", "size"), [("imagegpt-small", 0.0765), ("imagegpt-large", 1.362)])
def test_imagegpt(name: str, size: float) -> None:
    model = on_meta(ImageGPTForCausalImageModeling, ImageGPTConfig(**read(name)), name)
    adapter = image_adapter_of(model, Components())
    assert billions(model) == pytest.approx(size, rel=0.01)
    assert adapter.codebook_size == 512 and adapter.grid(None, None) == (32, 32) and adapter.max_length == 1025
    assert adapter.sampling == SAMPLING[name]


def test_janus_pro() -> None:
    model = on_meta(JanusForConditionalGeneration, JanusConfig(**read("janus-pro-1b")), "janus-pro-1b")
    adapter = image_adapter_of(model, Components(tiny_processors.janus()))
    # DeepSeek's file has 4.18 GB in 16 bits. There the head of the text has weights of its own.
    assert billions(model) + model.lm_head.weight.numel() / 1e9 == pytest.approx(2.09, rel=0.01)
    assert adapter.codebook_size == 16384 and adapter.grid(None, None) == (24, 24) and adapter.max_length == 16384
    assert adapter.sampling == SAMPLING["janus-pro-1b"]


def test_the_seven_billion_janus_pro_from_deepseeks_values() -> None:
    own = read("janus-pro-7b")
    parts = {name: own[f"{name}_config"]["params"] for name in ("aligner", "gen_aligner", "gen_head", "gen_vision")}
    config = JanusConfig(
        text_config=own["language_config"],
        vision_config={"projection_dim": parts["aligner"]["n_embed"], "depth": parts["aligner"]["depth"]},
        vq_config={
            "embed_dim": parts["gen_vision"]["n_embed"],
            "num_embeddings": parts["gen_vision"]["image_token_size"],
            "projection_dim": parts["gen_aligner"]["n_embed"],
            "image_token_embed_dim": parts["gen_head"]["image_token_embed"],
        },
    )
    model = on_meta(JanusForConditionalGeneration, config, "janus-pro-1b")
    adapter = image_adapter_of(model, Components(tiny_processors.janus()))
    assert billions(model) + model.lm_head.weight.numel() / 1e9 == pytest.approx(7.42, rel=0.01)  # 14.84 GB
    assert adapter.codebook_size == 16384 and adapter.grid(None, None) == (24, 24)


@pytest.mark.releases
def test_emu3() -> None:
    own = read("emu3-gen")
    names = {"<|extra_200|>": own["eol_token_id"], "<|extra_201|>": own["eof_token_id"], "<image>": own["img_token_id"]}
    names |= {f"<|visual token {code:06d}|>": 151854 + code for code in range(32768)}
    config = Emu3Config(vocabulary_map=names)
    text = config.get_text_config()
    for field in (
        "hidden_size", "intermediate_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers",
        "num_key_value_heads", "rms_norm_eps", "vocab_size", "bos_token_id", "eos_token_id", "pad_token_id",
    ):  # fmt: skip
        assert getattr(text, field) == own[field], field
    assert text.rope_parameters["rope_theta"] == own["rope_theta"]
    model = on_meta(Emu3ForConditionalGeneration, config, "emu3-gen")
    processor = tiny_processors.emu3()
    adapter = image_adapter_of(model, Components(processor))
    assert billions(model) == pytest.approx(8.76, rel=0.01) and adapter.sampling == SAMPLING["emu3-gen"]
    assert adapter.codebook_size == 32768 and adapter.grid(None, None) == (90, 90) and processor.image_area == 518400
    job = adapter.job(ImageRequest(["a red dog"], guided=True))
    assert job.length == 90 * 91 + 3 and adapter.max_length - job.length == 1023
    tokens = torch.tensor(names["<|visual token 000007|>"]).expand(1, 1)
    assert adapter.codes(tokens).item() == 7


def test_emu3_5(tmp_path: Path) -> None:
    """Its class and vocabulary make it an Emu3.5; a value that its code ignores does not add tensors."""
    own = read("emu3.5-image")
    (tmp_path / "config.json").write_text(json.dumps(own))
    assert alias_of(tmp_path) == ("Qwen3ForCausalLM", "emu3.5")
    model = on_meta(Qwen3ForCausalLM, Qwen3Config(**own), "emu3.5-image")
    assert billions(model) * 2e9 / 2**30 == pytest.approx(read("emu3.5-image", "weights.json")["gibibytes"], abs=0.05)
    assert not any(name.endswith("bias") for name in model.state_dict())


def chameleon_vocabulary() -> dict[str, int]:
    letters = "ABCDEFGHIJ"
    names = {"<racm3:break>": 8197, "<eoss>": 8196, "<image>": 8711}
    names |= {f"<reserved{n:05d}>": n + 4 for n in (8706, 8799, 8800)}
    return names | {f"IMGIMG{''.join(letters[int(d)] for d in str(code))}Z": 4 + code for code in range(8192)}


@pytest.mark.parametrize(("name", "layout"), [("anole-7b-v0.1-hf", "anole"), ("lumina-mgpt-7b-768", "lumina")])
def test_chameleons(name: str, layout: str) -> None:
    config = ChameleonConfig(vocabulary_map=chameleon_vocabulary())
    model = on_meta(ChameleonForConditionalGeneration, config, name)
    adapter = image_adapter_of(model, Components(tiny_processors.chameleon(), layout=layout))
    assert ChameleonIds.of(model) == ChameleonIds() and codes_of(model) == list(range(4, 8196))
    assert adapter.sampling == SAMPLING[name] and adapter.codebook_size == 8192
    side = 32 if layout == "anole" else 48
    assert adapter.grid(None, None) == (side, side) and adapter.max_length == 4096
    length = 1025 if layout == "anole" else 2356
    assert adapter.job(ImageRequest(["a red dog"], guided=True)).length == length
    assert billions(model) == pytest.approx(7.04, rel=0.01)


@pytest.mark.releases
def test_glm_image() -> None:
    model = on_meta(GlmImageForConditionalGeneration, GlmImageConfig(**read("glm-image")), "glm-image")
    adapter = image_adapter_of(model, Components(tiny_processors.glm()))
    assert adapter.sampling == SAMPLING["glm-image"] and adapter.codebook_size == 16384
    assert adapter.max_length == 131072 and model.lm_head.out_features == 16512


# --- Original files -------------------------------------------------------------------------------------------------


def original(name: str) -> dict[str, Tensor]:
    """The tensors of an original file, without data."""
    tensors = {}
    for key, entry in read(name, "weights.json").items():
        shape, layers = (entry["shape"], entry["layers"]) if isinstance(entry, dict) else (entry, 1)
        for layer in range(layers):
            tensors[key.replace("*", str(layer))] = torch.empty(shape, device="meta")
    return tensors


def squeezed(tensors: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The tensors with 1x1 convolutions as the linear layers of diffusers."""
    expected = model.state_dict()
    linear = {key for key, value in tensors.items() if key in expected and value.ndim == 4 and expected[key].ndim == 2}
    return {key: value[:, :, 0, 0] if key in linear else value for key, value in tensors.items()}


GPTS = sorted(path.name.removeprefix("llamagen-") for path in PUBLISHED.glob("llamagen-[ct]2i*"))


@pytest.mark.parametrize("name", GPTS)
def test_llamagen_has_the_tensors_of_the_original(name: str) -> None:
    tensors = original(f"llamagen-{name}")
    arguments = gpt_config(Path(f"{name}.pt"), tensors, {})
    with torch.device("meta"):
        gpt = LlamaGenGPT(**arguments)
    check_tensors(name, tensors, gpt)
    assert gpt.config.grid_size == int(name.split("_")[-1]) // 16


@pytest.mark.parametrize("name", ["llamagen-vq-16", "llamagen-vq-8", "chameleon-vqgan", "mar-kl16"])
def test_decoders_have_the_tensors_of_the_original(name: str) -> None:
    tensors = original(name)
    with torch.device("meta"):
        if name == "mar-kl16":
            config = kl16.kl16_config(Path(name), tensors)
            model: Any = AutoencoderKL(**config)
            renamed = {vqgan.rename(key, len(config["block_out_channels"])): value for key, value in tensors.items()}
        elif name == "chameleon-vqgan":
            config = vqgan.vqgan_config(tensors)
            model = VQModel(**config)
            renamed = {vqgan.rename(key, len(config["block_out_channels"])): value for key, value in tensors.items()}
        else:
            model = VQModel(**tokenizer.vq_config(tensors, {}))
            renamed = {tokenizer.rename(key): value for key, value in tensors.items() if "codebook_used" not in key}
    check_tensors(name, squeezed(renamed, model), model)


# --- Folders --------------------------------------------------------------------------------------------------------


def folder_of(name: str, path: Path) -> Path:
    """A folder with the published layout and generation config, and a tiny model."""
    kind = name.split("-")[0]
    maker = {"anole": "chameleon", "lumina": "chameleon"}.get(kind, kind)
    model, processor = getattr(tiny_models, maker)(), getattr(tiny_processors, maker)()
    if kind == "imagegpt":
        config = read(name) | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16, "vocab_size": 21}
        assert "architectures" not in config
        (path / "config.json").write_text(json.dumps(config))
        # Buffers of the code of 2021, which no longer exist.
        torch.save(
            model.state_dict() | {"transformer.h.0.attn.masked_bias": torch.zeros(1)}, path / "pytorch_model.bin"
        )
        old = {"feature_extractor_type": "ImageGPTFeatureExtractor", "do_resize": True, "do_normalize": True}
        old |= {"resample": 2, "size": 4, "clusters": processor.clusters.tolist()}
        (path / "preprocessor_config.json").write_text(json.dumps(old))
        return path
    # Ids of the published vocabulary are not those of the tiny one.
    own = {key: value for key, value in read(name, "generation_config.json").items() if not key.endswith("_id")}
    tiny = {key: value for key, value in model.generation_config.to_diff_dict().items() if key.endswith("_id")}
    kwargs = {"generation_kwargs": model.generation_config.generation_kwargs} if kind == "janus" else {}
    model.save_pretrained(path)
    (path / "generation_config.json").write_text(json.dumps(own | tiny | kwargs))
    processor.save_pretrained(path)
    return path


CALLS: dict[str, dict[str, Any]] = {"emu3-gen": {"height": 16, "width": 24}, "glm-image": {"height": 32, "width": 64}}


@pytest.mark.parametrize("name", SAMPLING)
def test_folders_of_the_published_layout(name: str, tmp_path: Path) -> None:
    config = {"layout": "lumina"} if "lumina" in name else None
    size = {"height": 8, "width": 8} if "lumina" in name else CALLS.get(name, {})
    pipe = mmspec.load(folder_of(name, tmp_path), config=config)
    pipe.set_progress_bar_config(disable=True)
    found = {key: pipe.config[key] for key in ("temperature", "top_k", "top_p", "guidance_scale")}
    assert SamplingParams(**found) == SAMPLING[name]
    prompt = "" if "imagegpt" in name else "a red dog"
    kind = "pil" if name.split("-")[0] in ("imagegpt", "emu3", "janus") else "latent"
    assert len(pipe(prompt, **size, seed=0, output_type=kind).images) == 1


# --- Prompts --------------------------------------------------------------------------------------------------------


def test_both_sides_of_emu3_begin_the_image() -> None:
    """The texts that the original processor (mode "G") tokenizes, on both sides: begin, text, sizes, begin of codes."""
    processor = tiny_processors.emu3()
    adapter = image_adapter_of(tiny_models.emu3(), Components(processor))
    prompts, negatives = ["a red dog", "cat"], ["dog", "a green cat"]
    job = adapter.job(ImageRequest(prompts, guided=True, negative_prompts=negatives, height=32, width=32))
    default = adapter.job(ImageRequest(prompts, guided=True, height=32, width=32))
    words = {"a": 30, "red": 31, "green": 32, "dog": 33, "cat": 34}
    image = [8, 36, 37, 36, 3]  # begin of image, 4, *, 4, begin of codes
    for side, texts in (("input", prompts), ("negative_prompt", negatives)):
        mask = job.arguments["attention_mask" if side == "input" else "negative_prompt_attention_mask"]
        ids = job.arguments[f"{side}_ids"]
        for row, text in enumerate(texts):
            expected = [1, *(words[word] for word in text.split()), *image]
            assert ids[row][mask[row].bool()].tolist() == expected and mask[row, -1] == 1
    negative = default.arguments["negative_prompt_ids"]
    plain = processor.tokenizer(processor.tokenizer.bos_token + NEGATIVE)["input_ids"]
    assert negative.tolist() == [[*plain, *image]] * 2


# --- Samples --------------------------------------------------------------------------------------------------------

ROWS = 1500


def p_value(ours: Tensor, own: Tensor) -> float:
    """The probability that two samples of one distribution differ as much, by chi-squared tests.

    The tests are of the first token, the second, and both together; the result is three times the least of them.

    Args:
        ours: Codes int64 [N, 2].
        own: Codes int64 [N, 2].
    """
    size = int(torch.cat([ours, own]).max()) + 1
    weights = torch.tensor([[1, 0], [0, 1], [size, 1]])
    return 3 * min(chi_squared(ours @ weight, own @ weight, size**2) for weight in weights)


def chi_squared(ours: Tensor, own: Tensor, size: int) -> float:
    """The p-value of a test of two samples of numbers below `size`, int64 [N]; rare ones are taken together."""
    a, b = (torch.bincount(numbers, minlength=size).double() for numbers in (ours, own))
    often = a + b >= 10
    a, b = (torch.cat([counts[often], counts[~often].sum()[None]]) for counts in (a, b))
    seen = a + b > 0
    statistic = ((a - b) ** 2 / (a + b))[seen].sum()
    return float(torch.special.gammaincc((seen.sum() - 1).double() / 2, statistic / 2))


def janus_own(model: Any, processor: Any, prompts: list[str]) -> Tensor:
    inputs = processor(text=prompts, generation_mode="image", return_tensors="pt")
    return model.generate(**inputs, generation_mode="image", do_sample=True, top_k=0)


def emu3_own(model: Any, processor: Any, prompts: list[str]) -> Tensor:
    form = {"return_for_image_generation": True, "ratio": "1:1", "image_area": 256, "return_tensors": "pt"}
    inputs, negative = processor(text=prompts, **form), processor(text=["dog"] * len(prompts), **form)
    del inputs["image_sizes"]
    lines = hf_image_cases.emu3_lines(2, 2, model)
    out = model.generate(
        **inputs, max_new_tokens=2, prefix_allowed_tokens_fn=lines, do_sample=True, top_k=2048, guidance_scale=3.0,
        negative_prompt_ids=negative["input_ids"],
    )  # fmt: skip
    return out[:, inputs["input_ids"].shape[1] :] - 10


def anole_own(model: Any, processor: Any, prompts: list[str]) -> Tensor:
    ids = processor.tokenizer(prompts, return_tensors="pt")["input_ids"]
    ids = torch.cat([ids, torch.tensor([[26, 25]]).expand(len(ids), -1)], dim=1)
    allowed = ImageConstraint.anole(model, 4, tiny_models.CHAMELEON_IDS)
    out = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, prefix_allowed_tokens_fn=allowed,
        do_sample=True, temperature=0.7, top_k=0, top_p=0.9, guidance_scale=3.0,
        negative_prompt_ids=torch.tensor([[0, 25]]).expand(len(ids), -1),
    )  # fmt: skip
    return out[:, ids.shape[1] :] - 4


def lumina_own(model: Any, processor: Any, prompts: list[str]) -> Tensor:
    ask = "Generate an image of 4x4 according to the following prompt:\n"
    ids = processor.tokenizer([ask + prompt for prompt in prompts], return_tensors="pt")["input_ids"]
    ids = torch.cat([ids, torch.tensor([[26, 25]]).expand(len(ids), -1)], dim=1)
    allowed = ImageConstraint.lumina(model, 2, 2, tiny_models.CHAMELEON_IDS)
    out = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, prefix_allowed_tokens_fn=allowed,
        do_sample=True, top_k=2000, guidance_scale=3.0,
    )  # fmt: skip
    return out[:, ids.shape[1] + 2 :] - 4


def glm_own(model: Any, processor: Any, prompts: list[str]) -> Tensor:
    chats = [[{"role": "user", "content": [{"type": "text", "text": prompt}]}] for prompt in prompts]
    texts = processor.apply_chat_template(chats)
    inputs = processor(text=texts, return_tensors="pt", target_h=32, target_w=64)
    codes = list(range(model.config.vq_config.num_embeddings))
    out = model.generate(**inputs, max_new_tokens=2, prefix_allowed_tokens_fn=lambda row, ids: codes, do_sample=True)
    return out[:, inputs["input_ids"].shape[1] :]


def imagegpt_own(model: Any, processor: Any, prompts: list[str]) -> Tensor:
    start = torch.full((len(prompts), 1), model.config.vocab_size - 1)
    return model.generate(input_ids=start, max_new_tokens=2, do_sample=True, top_k=40)[:, 1:]


Own = Callable[[Any, Any, list[str]], Tensor]
# The model, its processor, a call, its own generate with the published settings, settings of which the test must fail.
SAMPLED: dict[str, tuple[Any, Any, dict[str, Any], Own, dict[str, Any]]] = {
    "janus-pro-1b": (
        lambda: tiny_models.janus(side=2, codes=100, spread=0.1), tiny_processors.janus, {}, janus_own, {"top_k": 50},
    ),
    "emu3-gen": (
        tiny_models.emu3, tiny_processors.emu3, {"height": 16, "width": 16, "negative_prompt": "dog"}, emu3_own,
        {"guidance_scale": 2.5},
    ),
    "anole-7b-v0.1-hf": (
        lambda: tiny_models.chameleon(kind=hf_image_cases.OpenChameleon), tiny_processors.chameleon, {}, anole_own,
        {"top_p": 1.0},
    ),
    "lumina-mgpt-7b-768": (
        lambda: tiny_models.chameleon(kind=hf_image_cases.OpenChameleon, spread=0.15), tiny_processors.chameleon,
        {"height": 4, "width": 4}, lumina_own, {"top_k": 5},
    ),
    "glm-image": (
        tiny_models.glm, tiny_processors.glm, {"height": 32, "width": 64}, glm_own, {"top_p": 0.85},
    ),
    "imagegpt-small": (
        lambda: tiny_models.imagegpt(side=2, colours=60, spread=0.1), tiny_processors.imagegpt, {}, imagegpt_own,
        {"top_k": 50},
    ),
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("name", SAMPLED)
def test_pipelines_sample_as_their_classes_with_the_published_settings(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two codes of 1,500 images each.

    False alarms: one in 10^6 runs and model. Power: a change of top-k, top-p or guidance as in `SAMPLED` is found, by
    the same test, in this run.
    """
    make, processor, call, own, other = SAMPLED[name]
    model, processor = make(), processor()
    published = read(name, "generation_config.json")
    for setting in ("do_sample", "temperature", "top_k", "top_p", "guidance_scale"):
        setattr(model.generation_config, setting, published.get(setting))
    pipe = mmspec.load(model, processor=processor, config={"layout": "lumina"} if "lumina" in name else None)
    if name == "glm-image":  # its first codes are of a small grid, which the output lacks
        job = GlmAdapter.job

        def beginning(adapter: GlmAdapter, request: ImageRequest) -> DecodingJob:
            return replace(job(adapter, request), length=2, image=torch.arange(2))

        monkeypatch.setattr(GlmAdapter, "job", beginning)
    pipe.set_progress_bar_config(disable=True)
    prompt = "" if "imagegpt" in name else "a red dog"
    torch.manual_seed(0)
    expected = own(model, processor, [prompt] * ROWS)[:, :2]
    options = {**call, "num_images_per_prompt": ROWS, "output_type": "latent", "seed": 0, "recipe": "scd:window=2"}

    until = 4 if "lumina" in name else 2  # Lumina-mGPT writes the size first

    def stop(pipe: Any, step: int, committed: int, tensors: dict[str, Tensor]) -> None:
        pipe._interrupt = bool((tensors["tokens"][:, :until] >= 0).all())

    found = pipe(prompt, **options, callback_on_step_end=stop).tokens
    assert p_value(found[:, :2], expected) > 1e-6
    changed = pipe(prompt, **options, **other, callback_on_step_end=stop).tokens
    assert p_value(changed[:, :2], expected) < 1e-6
