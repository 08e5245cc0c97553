"""SimpleAR, Liquid and Emu3.5: folders as published, prompts, greedy tokens and samples of their original loops."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_flat_images
import torch
from torch import Tensor

import mmspec
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.sampling.params import SamplingParams
from mmspec.testing.adapters import check_samples
from mmspec.vision.hf.flat_formats import EMU3_NEGATIVE, FORMATS

PROMPTS = ["a red dog", "the cat on a red moon", "cat"]
LAYOUTS = ("simplear", "liquid", "emu3", "emu3.5")
NEGATIVE = FORMATS["simplear"].negative


def load(layout: str, model: Any = None, **options: Any) -> Any:
    model = tiny_flat_images.model(layout) if model is None else model
    pipe = mmspec.load(model, processor=tiny_flat_images.tokenizer(layout), config={"layout": layout}, **options)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def texts(layout: str, prompt: str, grid: tuple[int, int]) -> tuple[str, str]:
    """The conditional and the unconditional text before the codes, as the original scripts put them together."""
    if layout == "simplear":
        return f"<|t2i|>A highly realistic image of {prompt}<|soi|>", f"<|t2i|>{NEGATIVE}<|soi|>"
    if layout == "liquid":
        return prompt + " Generate an image based on this description.<boi>", "<unconditional><boi>"
    if layout == "emu3":
        image = f"<|image start|>{grid[0]}*{grid[1]}<|image token|>"
        return f"<|extra_203|>{prompt}{image}", f"<|extra_203|>{EMU3_NEGATIVE}{image}"
    system = "<|extra_203|>You are a helpful assistant"
    image = f"<|image start|>{grid[0]}*{grid[1]}<|image token|>"
    return (
        f"{system} for t2i task. USER: {prompt} ASSISTANT: <|extra_100|>{image}",
        f"{system}. USER:  ASSISTANT: <|extra_100|>{image}",
    )


@torch.no_grad()
def original(layout: str, model: Any, prompt: str, grid: tuple[int, int], scale: float) -> Tensor:
    """Greedy codes of one prompt by the loop of the original code: two sequences, without cache or padding."""
    tokenizer = tiny_flat_images.tokenizer(layout)
    height, width = grid
    first = tokenizer.convert_tokens_to_ids("<|visual token 000000|>") if layout.startswith("emu3") else len(tokenizer)
    sides = [tokenizer(text, return_tensors="pt")["input_ids"] for text in texts(layout, prompt, grid)]
    codes = []
    for place in range(height * width):
        cond, uncond = (model(input_ids=ids).logits[0, -1] for ids in sides)
        guided = uncond + scale * (cond - uncond)
        code = int(guided[first:].argmax())
        codes.append(code)
        new = [first + code]
        if layout.startswith("emu3") and (place + 1) % width == 0:
            new.append(tokenizer.convert_tokens_to_ids("<|extra_200|>"))
        sides = [torch.cat([ids, torch.tensor([new])], dim=1) for ids in sides]
    return torch.tensor(codes)


@pytest.mark.releases
@pytest.mark.parametrize(
    ("layout", "recipe"), [*((each, "scd:window=5") for each in LAYOUTS), ("liquid", "layer-skip:layers=1,window=3")]
)
def test_greedy_is_the_original_loop(layout: str, recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three prompts of different lengths, with the guidance of the original code."""
    pipe = load(layout)
    grid = (2, 3) if FORMATS[layout].any_size else (32, 32)
    size = {"height": 2 * FORMATS[layout].factor, "width": 3 * FORMATS[layout].factor}
    if layout == "liquid":
        monkeypatch.setattr("mmspec.vision.hf.adapters.flat.FlatImageAdapter.grid", lambda *_: (2, 3))
        grid, size = (2, 3), {}
    found = pipe(PROMPTS, **size, temperature=0, recipe=recipe, output_type="latent").tokens
    scale = FORMATS[layout].sampling.guidance_scale
    expected = torch.stack([original(layout, pipe.model, prompt, grid, scale) for prompt in PROMPTS])
    assert torch.equal(found, expected)
    assert len({tuple(row) for row in expected.tolist()}) == 3


def test_sampling_and_sizes_are_those_of_the_original_code() -> None:
    assert FORMATS["simplear"].sampling == SamplingParams(guidance_scale=6.0)
    assert FORMATS["liquid"].sampling == SamplingParams(temperature=0.99, top_k=4096, top_p=0.96, guidance_scale=7.0)
    assert FORMATS["emu3"].sampling == SamplingParams(top_k=2048, guidance_scale=3.0)
    assert FORMATS["emu3.5"].sampling == SamplingParams(top_k=5120, guidance_scale=5.0)
    assert [FORMATS[layout].grid for layout in LAYOUTS] == [(64, 64), (32, 32), (90, 90), (55, 73)]


# --- Folders --------------------------------------------------------------------------------------------------------

# The class that config.json of the published repositories names.
CLASSES = {
    "simplear": "SimpARForCausalLM",
    "liquid": "GemmaForCausalLM",
    "emu3": "Emu3ForCausalLM",
    "emu3.5": "Emu3ForCausalLM",
}


def published(layout: str, folder: Path) -> Path:
    """A folder in the layout of the original code, whose config.json names its class and no rope_parameters."""
    model = tiny_flat_images.model(layout)
    model.save_pretrained(folder)
    tiny_flat_images.tokenizer(layout).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": [CLASSES[layout]], "rope_theta": 10000.0}
    del config["rope_parameters"]
    if layout.startswith("emu3"):
        config["model_type"] = "Emu3"
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_folders_of_the_published_layout(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.vision.hf.from_pretrained.EMU3_IDS", 0 if layout == "emu3.5" else 10**6)
    monkeypatch.setattr("mmspec.vision.hf.adapters.flat.FlatImageAdapter.grid", lambda *_: (2, 3))
    folder = published(layout, tmp_path / "model")
    pipe = mmspec.load(folder, processor=tiny_flat_images.tokenizer(layout))
    pipe.set_progress_bar_config(disable=True)
    assert pipe.config.layout == layout and type(pipe.model) is tiny_flat_images.KINDS[layout][0]
    call: dict[str, Any] = {"seed": 0, "output_type": "latent"}
    tokens = pipe(PROMPTS, **call).tokens
    assert torch.equal(tokens, load(layout)(PROMPTS, **call).tokens)
    with pytest.raises(ArgumentError, match=f"tokenizer= {FORMATS[layout].decoder}"):
        pipe("a red dog")
    pipe.save_pretrained(tmp_path / "saved")
    saved = mmspec.load(tmp_path / "saved")
    saved.set_progress_bar_config(disable=True)
    assert torch.equal(saved(PROMPTS, **call).tokens, tokens)


@pytest.mark.parametrize("layout", ["simplear", "emu3"])
def test_sizes_that_are_no_numbers_are_one_line(layout: str, tmp_path: Path) -> None:
    folder = published(layout, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text()) | {"vocab_size": "many"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"is not a \w+: .*'vocab_size' expected int, got str"):
        mmspec.load(folder)


def test_options_tell_images_from_speech(tmp_path: Path) -> None:
    """A Gemma is taken for a Liquid unless options of speech are given, any other decoder of text for speech."""
    folder, tokenizer = published("liquid", tmp_path / "gemma"), tiny_flat_images.tokenizer("liquid")
    with pytest.raises(ArgumentError, match="a flat speech model comes without a codec"):
        mmspec.load(folder, processor=tokenizer, config={"style": "neutts"})
    with pytest.raises(ArgumentError, match=r"one that generates images takes config={'layout': \.\.\.}"):
        mmspec.load(tiny_flat_images.model("simplear"), processor=tiny_flat_images.tokenizer("simplear"))


def test_layouts_are_named() -> None:
    model, tokenizer = tiny_flat_images.model("simplear"), tiny_flat_images.tokenizer("simplear")
    with pytest.raises(ArgumentError, match=r"layout='simple-ar' is not allowed .*did you mean 'simplear'"):
        mmspec.load(model, processor=tokenizer, config={"layout": "simple-ar"})
    with pytest.raises(
        ArgumentError, match=r"processor is missing for Qwen2ForCausalLM; pass processor=AutoTokenizer\."
    ):
        mmspec.load(model, config={"layout": "simplear"})
    with pytest.raises(ModelError, match="no token '<|visual token 000000|>'"):
        mmspec.load(model, processor=tokenizer, config={"layout": "emu3.5"})
    with pytest.raises(ArgumentError, match=r"layout=\['simplear'\] is not allowed; it is a name"):
        mmspec.load(model, processor=tokenizer, config={"layout": ["simplear"]})
    with pytest.raises(ArgumentError, match="negative_prompt='a dog' is not an option of GemmaForCausalLM"):
        load("liquid")("a red dog", negative_prompt="a dog", output_type="latent")
    with pytest.raises(PromptError, match="negative_prompt has 1010 tokens, which is too long: the image has 6"):
        load("simplear")("a red dog", negative_prompt="dog " * 252, height=32, width=48, output_type="latent")


# --- Samples and windows --------------------------------------------------------------------------------------------


def test_samples_follow_the_enumerated_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """All 81 images of 2 x 2 codes, with guidance and short prompts. An exact recipe fails once in a million runs."""
    short = replace(FORMATS["simplear"], prompt="<|t2i|>{prompt}<|soi|>", negative="bad")
    monkeypatch.setitem(FORMATS, "simplear", short)
    monkeypatch.setattr("mmspec.vision.hf.adapters.flat.FlatImageAdapter.grid", lambda *_: (2, 2))
    pipe = load("simplear", tiny_flat_images.model("simplear", codes=3, spread=0.1))

    def make(batch_size: int, window: int) -> Any:
        return pipe.prepare(["cat"] * batch_size, window).make()

    layout, params = pipe.prepare(["cat"], 4).layout, SamplingParams(0.9, top_p=0.95, guidance_scale=1.5)
    found = check_samples(make, layout, "scd:window=3", params, samples=10_000)
    assert found.ok and found.tokens_per_call > 1, found
