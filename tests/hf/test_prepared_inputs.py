"""Inputs of a model: what the caller gave is refused by name, what transformers prepared is judged by what it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tiny_models
import tiny_speech
import torch
import transformers
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig, StaticCache
from transformers.generation import GenerationMixin

from mmspec.errors import ArgumentError
from mmspec.hf import modes
from mmspec.hf.cache_name import NAMES, cache_input
from mmspec.hf.call import call_generate
from mmspec.hf.generate import generate
from mmspec.hf.prepared_inputs import is_of_the_loop, refuse_filled_cache, refuse_unknown_inputs

pytestmark = pytest.mark.releases

IDS = torch.tensor([[0, 0, 1, 5, 6, 7], [1, 5, 8, 9, 10, 3]])
MASK = (IDS != 0).long()
CALL: dict[str, Any] = {"attention_mask": MASK, "max_new_tokens": 4, "do_sample": False}
MODELS: dict[str, Callable[[], Any]] = {
    "flat": tiny_speech.flat, "emu3": tiny_models.emu3, "chameleon": tiny_models.chameleon,
    "imagegpt": tiny_models.imagegpt, "csm": tiny_speech.csm,
}  # fmt: skip
CAUSAL = torch.ones(6, 6).tril().bool().expand(2, 1, -1, -1)
POSITIONS = (MASK.cumsum(1) - 1).masked_fill(MASK == 0, 1)
# What a later release might prepare, and whether it is a matter of the loop.
PREPARED: dict[str, tuple[Callable[[], Any], bool]] = {
    "nothing": (lambda: None, True),
    "masks of nothing": (lambda: {"full": None}, True),
    "an empty cache": (DynamicCache, True),
    "an empty cache of two": (lambda: EncoderDecoderCache(DynamicCache(), DynamicCache()), True),
    "a flag": (lambda: True, True),
    "a count": (lambda: 1, True),
    "a mask of the prompt": (lambda: MASK, True),
    "a bool mask": (lambda: CAUSAL, True),
    "an additive mask": (lambda: torch.zeros(2, 1, 6, 6).masked_fill(~CAUSAL, torch.finfo(torch.float32).min), True),
    "masks by kind of layer": (lambda: {"full_attention": CAUSAL, "sliding_attention": None}, True),
    "positions": (lambda: torch.arange(6), True),
    "positions without padding": (lambda: POSITIONS, True),
    "positions along three axes": (lambda: POSITIONS.expand(3, -1, -1), True),
    "marks of a part": (lambda: (IDS > 6).long(), False),
    "bool marks of a part": (lambda: IDS > 6, False),
    "a grid": (lambda: torch.tensor([[1, 2, 2]]), False),
    "pixels": (lambda: torch.rand(2, 3, 4, 4), False),
    "features": (lambda: {"image": torch.rand(2, 5)}, False),
    "ids": (lambda: IDS * 7, False),
    "numbers": (lambda: torch.tensor([0.5, 2.0]), False),
    "a text": (lambda: "cat", False),
    "an object": (object, False),
}


def preparing(monkeypatch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    """Makes transformers' `generate` prepare one more input."""
    prepare = GenerationMixin._prepare_cache_for_generation

    def more(self: Any, config: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        found = prepare(self, config, inputs, *args, **kwargs)
        inputs[name] = value
        return found

    monkeypatch.setattr(GenerationMixin, "_prepare_cache_for_generation", more)


def call(model: Any, **more: Any) -> Tensor:
    return call_generate(model.generate, IDS, **CALL, recipe="scd:window=3", **more)


@pytest.mark.parametrize("kind", MODELS)
def test_inputs_of_a_later_release(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS[kind]()
    expected = call(model)
    for what, (make, of_the_loop) in PREPARED.items():
        with monkeypatch.context() as patch:
            preparing(patch, "hypothetical", make())
            direct = lambda: model.generate(IDS, **CALL, custom_generate=generate, recipe="scd:window=3")  # noqa: E731
            if of_the_loop:
                assert torch.equal(call(model), expected) and torch.equal(direct(), expected), what
                continue
            with pytest.raises(ArgumentError, match="^the caller gave, or transformers prepared, hypothetical, which"):
                direct()
            with pytest.raises(ArgumentError) as error:
                call(model)
        assert str(error.value) == (
            f"transformers prepared hypothetical, which mmspec does not know for {type(model).__name__}; transformers "
            f"{transformers.__version__} is installed, and mmspec is tested with 5.23 to 5.24"
        ), what


@pytest.mark.parametrize("name", [*NAMES, "third_name"])
def test_a_filled_cache_is_refused_under_every_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_speech.flat()
    for cache in (DynamicCache(), StaticCache(config=model.config, max_cache_len=20)):
        model(IDS[:, :3], use_cache=True, **cache_input(model, cache))
        with monkeypatch.context() as patch, pytest.raises(ArgumentError, match=f"^{name} already holds tokens;"):
            preparing(patch, name, cache)
            call(model)


@pytest.mark.parametrize("kind", MODELS)
def test_what_the_caller_gave_is_refused_by_name(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS[kind]()
    # Otherwise transformers refuses names that a model does not have.
    monkeypatch.setattr(type(model), "_validate_model_kwargs", lambda self, inputs: None)
    for value in (torch.rand(2, 3), torch.ones(2, 6).long(), True):  # an input that marks something is lost, too
        with pytest.raises(ArgumentError, match=f"^foo is not supported by mmspec for {type(model).__name__}; leave"):
            call(model, foo=value)
    assert torch.equal(call(model, foo=None), call(model))


@pytest.mark.parametrize("make", [tiny_models.emu3, tiny_models.chameleon])
def test_images_are_refused_by_the_name_that_the_caller_used(make: Any) -> None:
    model = make()
    side = 2 ** len(model.config.vq_config.channel_multiplier)
    pixels: dict[str, Any] = {"pixel_values": torch.rand(1, 3, side, side)}
    if make is tiny_models.emu3:
        pixels["image_sizes"] = torch.tensor([[side, side]])
    with pytest.raises(ArgumentError, match="^pixel_values is not supported by mmspec for"):
        call(model, **pixels)


def test_an_input_that_is_known_is_read() -> None:
    model, features = tiny_speech.flat(), torch.rand(2, 3)
    with pytest.raises(ArgumentError, match="^the caller gave, or transformers prepared, foo, which mmspec"):
        refuse_unknown_inputs(model, {"attention_mask": MASK, "foo": features}, (), None)
    refuse_unknown_inputs(model, {"attention_mask": MASK, "foo": features}, ("foo",), None)


def test_positions_of_padding_mean_nothing() -> None:
    restarted = torch.tensor([[5, 5, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5]])
    assert is_of_the_loop(restarted, MASK) and not is_of_the_loop(restarted)


def test_use_cache_and_synced_gpus_are_refused_as_the_caller_set_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_speech.flat()
    for given in ({"use_cache": False}, {"generation_config": GenerationConfig(use_cache=False)}):
        with pytest.raises(ArgumentError, match="^use_cache=False is not supported"):
            model.generate(IDS, **CALL, custom_generate=generate, **given)
    model.generation_config.use_cache = False  # as training saves it
    call(model)
    with pytest.raises(ArgumentError, match="^synced_gpus=True is not supported"):
        call(model, synced_gpus=True)
    monkeypatch.setattr(modes, "is_deepspeed_zero3_enabled", lambda: True)
    call(model)  # one process has none to wait for
    for name, value in (("is_initialized", True), ("get_world_size", 2)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    monkeypatch.setattr(modes, "is_fsdp_managed_module", lambda module: False)
    with pytest.raises(ArgumentError, match="^synced_gpus=True is not supported"):
        modes.refuse_call(model, model.generation_config)


@pytest.mark.parametrize("kind", MODELS)
def test_positions_of_the_caller_are_followed_or_refused(kind: str) -> None:
    model = MODELS[kind]()
    usual = (MASK.cumsum(1) - 1).clamp(min=0)
    assert torch.equal(call(model, position_ids=usual), call(model))
    other = usual.flip(1)
    if kind == "csm":
        with pytest.raises(ArgumentError, match="^position_ids is not supported by mmspec for Csm"):
            call(model, position_ids=other)
    else:
        own = model.generate(IDS, **CALL, position_ids=other, use_cache=True)
        assert torch.equal(call(model, position_ids=other), own)


@pytest.mark.parametrize("kind", MODELS)
def test_a_list_is_no_cache(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS[kind]()
    preparing(monkeypatch, NAMES[0], [(torch.zeros(2, 2, 3, 4),) * 2])
    with pytest.raises(ArgumentError, match=f"^{NAMES[0]} must be a cache of transformers, not a list, and mmspec has"):
        call(model)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cache", [[], (), "dynamic", torch.zeros(1)])
def test_what_is_no_cache_is_refused(name: str, cache: Any) -> None:
    with pytest.raises(ArgumentError, match=f"^{name} must be a cache of transformers, not a {type(cache).__name__}"):
        refuse_filled_cache({"attention_mask": MASK, name: cache})


@pytest.mark.parametrize(
    ("checkpoint", "given", "refused"),
    [
        (None, {}, False),
        (True, {"generation_config": GenerationConfig(use_cache=True)}, False),
        (None, {"generation_config": GenerationConfig(use_cache=False)}, True),
        (True, {"generation_config": GenerationConfig(use_cache=False)}, True),
        (None, {"use_cache": False}, True),
        (False, {}, False),  # of the training, by accident: what the call says cannot be told from it
        (False, {"generation_config": GenerationConfig()}, False),
    ],
)
def test_use_cache_of_the_caller_counts(checkpoint: bool | None, given: dict[str, Any], refused: bool) -> None:
    model = tiny_speech.flat()
    expected = call(model)
    model.generation_config.use_cache = checkpoint
    if refused:
        with pytest.raises(ArgumentError, match="^use_cache=False is not supported; drafts are verified on the KV"):
            call(model, **given)
    else:
        assert torch.equal(call(model, **given), expected)
