"""The name of the KV cache: `cache` since transformers 5.24, `past_key_values` before and in older modules."""

from __future__ import annotations

import logging
import warnings
from contextlib import nullcontext
from functools import wraps
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_models
import tiny_speech
import torch
import transformers
from torch import Tensor, nn
from transformers import DynamicCache

from mmspec.hf.adapters import GENERATE_ADAPTERS
from mmspec.hf.cache_name import NAMES, RELEASE, cache_input, cache_name, cache_of
from mmspec.hf.causal_target import Backbone, CausalTarget, Prompt
from mmspec.hf.decoder_layers import DecoderLayers
from mmspec.hf.generate import generate

pytestmark = pytest.mark.releases

NEW, OLD = NAMES
IDS = torch.tensor([[1, 5, 6, 7], [1, 5, 8, 9]])


def module(forward: Any) -> nn.Module:
    kind: Any = type("Made", (nn.Module,), {"forward": forward})
    made: nn.Module = kind()
    return made


def new(self: Any, x: Any, cache: Any = None) -> Any:
    return cache


def old(self: Any, x: Any, past_key_values: Any = None) -> Any:
    return past_key_values


def both(self: Any, x: Any, past_key_values: Any = None, cache: Any = None) -> Any:
    return cache


def keywords(self: Any, x: Any, **inputs: Any) -> Any:
    return inputs


@wraps(new)
def decorated(*args: Any, **kwargs: Any) -> Any:
    return new(*args, **kwargs)


MODULES: list[tuple[str, Any, str]] = [
    ("today's", lambda: module(new), NEW),
    ("of a remote repository", lambda: module(old), OLD),
    ("with a decorator", lambda: module(decorated), NEW),
    ("with both, of which one may mean something else", lambda: module(both), RELEASE),
    ("that hands keywords on", lambda: module(keywords), RELEASE),
    ("compiled", lambda: torch.compile(module(old), backend="eager"), OLD),
    ("a decoder of mmspec", lambda: Sum([], nn.Identity()), RELEASE),
    ("a function", lambda: lambda x, past_key_values: x, OLD),
    ("of transformers", lambda: tiny_speech.flat(), RELEASE),
    ("a decoder of transformers", lambda: tiny_speech.flat().model, RELEASE),
    ("a layer of transformers", lambda: tiny_speech.flat().model.layers[0], RELEASE),
    ("a layer's attention", lambda: tiny_speech.flat().model.layers[0].self_attn, RELEASE),
]


@pytest.mark.parametrize(("make", "name"), [pytest.param(make, name, id=what) for what, make, name in MODULES])
def test_the_signature_of_a_module_decides(make: Any, name: str) -> None:
    called, cache = make(), DynamicCache()
    assert cache_name(called) == name and cache_input(called, cache) == {name: cache}


@pytest.mark.parametrize("name", sorted({name for name in GENERATE_ADAPTERS if hasattr(transformers, name)}))
def test_the_classes_of_transformers_take_the_name_of_the_release(name: str) -> None:
    assert cache_name(getattr(transformers, name).forward) == RELEASE


def test_outputs_of_both_names() -> None:
    cache = DynamicCache()
    assert all(cache_of(SimpleNamespace(**{name: cache})) is cache for name in NAMES)
    model = tiny_speech.flat()
    assert cache_of(model(IDS, use_cache=True, **cache_input(model, cache))) is cache


def test_a_decoder_with_the_other_name_decodes() -> None:
    """A remote decoder keeps its name when the release changes, and one written for the next release has that."""
    model: Any = tiny_speech.flat()
    decoder: Any = model.model

    def forward(inputs_embeds: Tensor, attention_mask: Tensor, position_ids: Tensor, use_cache: bool, past: Any) -> Any:
        inputs = {"inputs_embeds": inputs_embeds, "attention_mask": attention_mask, "position_ids": position_ids}
        return decoder(**inputs, use_cache=use_cache, **cache_input(decoder, past))

    def with_old(self: Any, use_cache: bool, past_key_values: Any, **inputs: Tensor) -> Any:
        return forward(**inputs, use_cache=use_cache, past=past_key_values)

    def with_new(self: Any, use_cache: bool, cache: Any, **inputs: Tensor) -> Any:
        return forward(**inputs, use_cache=use_cache, past=cache)

    def logits(called: Any) -> Tensor:
        embed = model.get_input_embeddings()
        backbone = Backbone(called, embed, model.lm_head, model.config.vocab_size, torch.device("cpu"))
        prompt = Prompt(embed(IDS), torch.ones_like(IDS).bool(), torch.arange(4).expand(1, 2, -1))
        target = CausalTarget(backbone, prompt, None, 4, 4)
        return torch.cat([target.prefill().cond, target.forward(IDS[:, :3], torch.zeros(2).long().numpy()).cond], dim=1)

    with torch.inference_mode():
        expected = logits(decoder)
        for each in (module(with_old), module(with_new)):
            assert torch.equal(logits(each), expected)


class Sum(DecoderLayers):
    """Adds what the cache says to the embeddings."""

    def enter(self, embeds: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, Any]:
        return embeds + cache, lambda layer, hidden: layer(hidden)


def test_decoders_of_mmspec_take_both_names() -> None:
    layers, x = Sum([nn.Identity()], nn.Identity()), torch.ones(1, 1, 2)
    calls = [layers(x, x, x, use_cache=True, **{name: 2 * x}) for name in NAMES]
    assert all(torch.equal(call.last_hidden_state, 3 * x) for call in calls)


@pytest.mark.parametrize("make", [tiny_speech.flat, tiny_models.emu3, tiny_models.chameleon, tiny_models.imagegpt])
def test_no_call_warns_of_the_name(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers warns of arguments by `warnings`, of attributes of outputs in its log."""
    said: list[str] = []
    monkeypatch.setattr(logging.Logger, "warning_once", lambda self, message, *args: said.append(str(message)), False)
    model = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.generate(IDS, max_new_tokens=4, do_sample=False, custom_generate=generate, recipe="scd:window=3")
    assert not [message for message in said if "past_key_values" in message or "cache_params" in message]


def test_callers_may_use_the_old_name() -> None:
    model = tiny_speech.flat()
    call: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "custom_generate": generate}
    warned = pytest.warns(FutureWarning, match=OLD) if RELEASE == NEW else nullcontext()  # by transformers, of the call
    with warned:
        tokens = model.generate(IDS, **{OLD: DynamicCache()}, **call)
    assert torch.equal(tokens, model.generate(IDS, **call))
