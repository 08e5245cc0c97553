"""Arguments of public calls: every wrong value is one line that names the argument."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import tiny_processors
import tiny_speech as tiny_speech
import torch
from tiny_llamagen import T as SLOTS
from tiny_llamagen import tiny

import mmspec
from mmspec.arguments import check_device
from mmspec.audio.spoken.model import load as load_spoken
from mmspec.errors import ArgumentError, MMSpecError, shorten
from mmspec.loading import read_dtype
from mmspec.recipes import Recipe, parse
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.seeds import row_seeds
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline
from mmspec.vision.shapes.latent.model import load as load_latents

PROMPT = "a red circle above a blue square"
WRONG: list[Any] = [
    3, -1, 2.5, math.nan, math.inf, "x", b"x", [], {}, object(), [3], np.zeros(3), torch.ones(2, 2), True,
]  # fmt: skip
NO_NUMBERS: list[Any] = [math.nan, math.inf, "x", b"x", [], {}, object(), np.zeros(3), -1, 10**400, Decimal("0.5")]
NO_TEXTS: list[Any] = [3, 2.5, b"x", [], {}, object(), [3], ["a", None], np.zeros(3), torch.ones(2), {"a"}, None]


def refused(name: str, call: Any) -> None:
    """Checks that a call raises an error of mmspec, in one short line that names an argument."""
    with pytest.raises(MMSpecError) as error:
        call()
    text = str(error.value)
    assert name in text
    assert "\n" not in text and len(text) < 700


@pytest.fixture(scope="module")
def latents() -> Any:
    return load_latents()


@pytest.fixture(scope="module")
def spoken() -> Any:
    return load_spoken()


@pytest.fixture(scope="module")
def llamagen() -> Any:
    pipe = LlamaGenPipeline(tiny())
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.mark.parametrize("text", NO_TEXTS, ids=lambda value: type(value).__name__)
def test_texts(text: Any, latents: Any, spoken: Any) -> None:
    refused("prompt", lambda: latents(text))
    refused("text", lambda: spoken(text))
    refused("text", lambda: spoken.stream(text))


@pytest.mark.parametrize("value", WRONG, ids=lambda value: type(value).__name__)
def test_callbacks_and_flags(value: Any, latents: Any, spoken: Any, llamagen: Any) -> None:
    features = torch.zeros(1, SLOTS, 7)
    refused("on_step", lambda: latents(PROMPT, on_step=value))
    refused("on_step", lambda: spoken("one", on_step=value))
    refused("on_step", lambda: spoken.stream("one", on_step=value))
    for name in ("on_step", "callback_on_step_end"):
        refused(name, lambda name=name: llamagen(prompt_embeds=features, output_type="latent", **{name: value}))
    if value is not True:
        refused(
            "measure_entropy", lambda: llamagen(prompt_embeds=features, output_type="latent", measure_entropy=value)
        )
    if not isinstance(value, torch.Tensor):
        refused("prompt_embeds", lambda: llamagen(prompt_embeds=value, output_type="latent"))
        refused("mask", lambda: llamagen(prompt_embeds=features, prompt_attention_mask=value, output_type="latent"))
    if not isinstance(value, list) or value:
        refused("generator", lambda: llamagen(prompt_embeds=features, generator=value, output_type="latent"))


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: type(value).__name__)
def test_numbers(value: Any, latents: Any, spoken: Any, llamagen: Any) -> None:
    for name in ("temperature", "top_k", "top_p", "guidance_scale"):
        refused(name, lambda name=name: SamplingParams(**{name: value}))
        refused(name, lambda name=name: latents(PROMPT, **{name: value}))
    refused("guidance_end", lambda: SamplingParams(guidance_end=value))
    refused("head_steps", lambda: latents(PROMPT, head_steps=value))
    refused("num_images_per_prompt", lambda: latents(PROMPT, num_images_per_prompt=value))
    for name in ("first", "every"):
        refused(name, lambda name=name: spoken.stream("one", **{name: value}))
    if not isinstance(value, int) or value != -1:
        features = torch.zeros(1, SLOTS, 7)
        refused("cfg_interval", lambda: llamagen(prompt_embeds=features, cfg_interval=value, output_type="latent"))


@pytest.mark.parametrize("name", ["min_p", "typical_p"])
def test_min_p_and_typical_p_reach_the_sampler(name: str, spoken: Any, llamagen: Any) -> None:
    """min_p=1 leaves the most likely token, and a tiny typical_p a single one, whatever the seed."""
    only, features, recipe = {name: {"min_p": 1.0, "typical_p": 1e-4}[name]}, torch.randn(1, SLOTS, 7), parse("scd")

    def speak(**options: Any) -> torch.Tensor:
        return torch.cat(spoken("one", **options).tokens)

    def draw(**options: Any) -> torch.Tensor:
        return torch.as_tensor(llamagen(prompt_embeds=features, output_type="latent", **options).tokens)

    for call in (speak, draw):
        found = call(seed=1, **only)
        assert torch.equal(call(seed=2, **only), found) and not torch.equal(call(seed=1), found)
        assert torch.equal(call(temperature=0), found) == (name == "min_p")
        refused(name, lambda call=call: call(**{name: 2}))
    (row,) = spoken.read_request("one", {"seed": 3, **only}, recipe).rows
    assert getattr(row.sampling, name) == only[name]
    assert torch.cat(list(map(torch.as_tensor, spoken.stream("one", seed=4, **only))), -1).shape[-1]
    assert getattr(llamagen._sampling(None, None, None, None, **only), name) == only[name]


def test_numbers_of_numpy_are_numbers() -> None:
    params = SamplingParams(temperature=np.float32(0.5), top_k=np.int64(3))  # type: ignore[arg-type]
    assert (params.temperature, params.top_k) == (0.5, 3)
    assert type(params.top_k) is int


def test_seeds_and_generators() -> None:
    for seed in ("1", 1.5, [[1], [1, 2]], {}, [None], True, object(), -2, [-2], np.int64(-7)):
        refused("seed", lambda seed=seed: row_seeds(seed, 1))
    for generator in (3, "x", [3], [], object(), [None]):
        refused("generator", lambda generator=generator: row_seeds(None, 1, generator))
    assert row_seeds(2**70, 2) == [2**70, 2**70 + 1]


def test_a_seed_of_minus_1_is_a_random_one() -> None:
    """As in vLLM and llama.cpp; the rows of a call follow each other, so that its first seed repeats it."""
    (first, second), (again, _) = row_seeds(-1, 2), row_seeds(-1, 2)
    assert second == first + 1 and first != again and min(first, again) >= 0
    seven, some, other = row_seeds([7, -1, -1], 3)
    assert seven == 7 and some != other and min(some, other) >= 0
    generator = torch.Generator().manual_seed(3)
    assert row_seeds(-1, 1, generator) == row_seeds(None, 1, generator.manual_seed(3))
    for pipe, prompt in ((mmspec.load("shapes"), "a red circle"), (mmspec.load("spoken"), "one")):
        request = pipe.read_request(prompt, {"seed": -1}, parse("plain"))
        assert request.seed == request.rows[0].seed >= 0


def test_recipes() -> None:
    for name, knobs in ((3, {}), (None, {}), ("scd", 3), ("scd", {3: 4}), ("scd", ["window"]), (b"scd", {})):
        refused("knobs" if name == "scd" else "name", lambda name=name, knobs=knobs: Recipe(name, knobs))
    for value in (*NO_NUMBERS, True, 2.5, "9" * 5000, [3]):
        refused("window", lambda value=value: Recipe("scd", {"window": value}))
    for recipe in (3, b"scd", [], {}, object(), np.zeros(3)):
        refused("recipe", lambda recipe=recipe: parse(recipe))


MODELS: list[Any] = [None, 3, b"x", [], {}, object(), "", " ", "a\0b", "x" * 5000, Path("no/such"), np.zeros(3)]


@pytest.mark.parametrize("model", MODELS, ids=lambda value: type(value).__name__)
def test_models(model: Any) -> None:
    refused("model", lambda: mmspec.load(model))


@pytest.mark.parametrize("name", ["tokenizer", "config", "drafter", "device", "dtype"])
def test_arguments_of_load(name: str) -> None:
    for value in (3, b"x", [], object(), "", "x" * 5000):
        refused(name, lambda value=value: mmspec.load("shapes", **{name: value}))


def test_devices() -> None:
    for device in ("gpu", "hpu", "meta", "cuda:99", "", 3, None, "x" * 500, "maia", "privateuseone"):
        refused("device", lambda device=device: check_device(device))
    check_device(torch.device("cpu"))


def test_dtypes() -> None:
    known = {
        None: None, "float16": torch.float16, "bf16": torch.bfloat16, " FP32 ": torch.float32,
        "torch.bfloat16": torch.bfloat16, "half": torch.float16, torch.float64: torch.float64, "auto": "auto",
    }  # fmt: skip
    for dtype, meant in known.items():
        assert read_dtype(dtype) == meant
    allowed = "it is one of auto, float32, float16, bfloat16, float64"
    rest: list[Any] = [
        "x", 3, int, [], float, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn, "int8", "",
    ]  # fmt: skip
    for wrong in rest:
        with pytest.raises(ArgumentError, match=allowed):
            read_dtype(wrong)
    with pytest.raises(ArgumentError, match=r"dtype='floot16' is not allowed \(did you mean 'float16'\?\)"):
        read_dtype("floot16")


def test_dtypes_are_honoured() -> None:
    assert mmspec.load("shapes", dtype="float16").transformer.dtype == torch.float16


def test_options_of_generate() -> None:
    model, ids = tiny_speech.flat(), torch.tensor([[1, 2]])
    options: dict[str, list[Any]] = {
        "draft_model": [3, "x", []], "table": [3, "x", [], torch.ones(2), torch.ones(2, 2)],
        "heads": [3, [3], ["x"], object()], "on_step": [3, "x"], "on_stats": [3, "x"],
        "measure_entropy": [3, "x", None],
        "recipe": [3, b"x"], "seed": ["x", 1.5, [1, 2]],
    }  # fmt: skip
    for name, values in options.items():
        for value in values:
            more = {"recipe": "scd", "seed": 0, name: value}
            refused(
                name, lambda more=more: model.generate(ids, max_new_tokens=4, custom_generate=mmspec.generate, **more)
            )


def test_messages_quote_at_most_200_characters() -> None:
    assert shorten("the model's name 'x' is wrong; it isn't 'y'") == "the model's name 'x' is wrong; it isn't 'y'"
    for text in ("x" * 9999, "a b " * 999, "it's " * 999, 'say "it" ' * 999):
        message = str(ArgumentError(f"prompt={text!r} is not allowed; use another"))
        assert len(message) < 300
        assert message.endswith("is not allowed; use another")
        assert f"({len(repr(text))} characters)" in message or f"({len(repr(text)) + 7} characters)" in message
    assert len(str(ArgumentError(f"seed={[1, 2] * 9999} is not allowed"))) < 300
    assert len(str(ArgumentError("a b " * 9999))) < 5000


def test_arguments_of_image_pipelines_of_transformers() -> None:
    """A temperature may be an integer; callbacks get tensors by name."""
    pipe = mmspec.load(tiny_models.janus(), processor=tiny_processors.janus())
    pipe.set_progress_bar_config(disable=True)
    call = {"seed": 0, "output_type": "latent"}
    assert torch.equal(pipe("a", temperature=2, **call).tokens, pipe("a", temperature=2.0, **call).tokens)
    for value in WRONG:
        if not isinstance(value, list) or value:
            name = "callback_on_step_end_tensor_inputs"
            refused(name, lambda name=name, value=value: pipe("a", **call, **{name: value}))
        if value is not True:
            refused("return_dict", lambda value=value: pipe("a", **call, return_dict=value))
