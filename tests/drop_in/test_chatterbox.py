"""`mmspec.accelerate` on chatterbox-tts, by a stand-in for it; tests/packages has the package itself."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import stand_in_t3 as stand_in
import torch
from torch import Tensor
from two_samples import check_accelerated_samples

import mmspec
from mmspec.errors import ArgumentError

pytestmark = pytest.mark.releases

MAKERS: dict[str, Callable[[], Any]] = {"english": stand_in.ChatterboxTTS, "turbo": stand_in.ChatterboxTurboTTS}
# What leaves each call its most likely code alone.
GREEDY: dict[str, dict[str, Any]] = {"english": {"min_p": 1.0}, "turbo": {"top_k": 1, "repetition_penalty": 1.0}}


def speak(model: Any, seed: int = 0, **more: Any) -> Tensor:
    torch.manual_seed(seed)
    wave: Tensor = model.generate("one two", **more)
    return wave


def notes(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("name", MAKERS)
def test_greedy_equals_the_untouched_object(name: str, caplog: pytest.LogCaptureFixture) -> None:
    model = MAKERS[name]()
    own = speak(model, **GREEDY[name])
    assert len(own) > 8
    for recipe in ("scd:window=4", "recycle:window=3"):
        assert mmspec.accelerate(model, recipe) is model
        assert torch.equal(speak(model, **GREEDY[name]), own), notes(caplog)
        stats = mmspec.last_stats(model)
        assert stats is not None and stats.tokens > stats.target_calls
    mmspec.accelerate(model, enabled=False)
    assert not {"inference", "inference_turbo"} & {*vars(model.t3)}
    assert not notes(caplog)


@pytest.mark.parametrize("name", MAKERS)
def test_a_seed_of_torch_gives_the_same_samples_twice(name: str) -> None:
    model = mmspec.accelerate(MAKERS[name](), "scd:window=4")
    first, again, other = (speak(model, seed) for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.slow
@pytest.mark.parametrize("is_gpt", [False, True], ids=["english", "turbo"])
def test_samples_follow_the_distribution_of_the_untouched_object(is_gpt: bool) -> None:
    t3 = stand_in.T3(is_gpt, codes=2)
    voice, texts = torch.linspace(-1, 1, 48).view(1, 3, 16), torch.tensor([[1, 2]] * (1 if is_gpt else 2))

    def sample() -> int:
        if is_gpt:
            codes = t3.inference_turbo(voice, texts, top_p=0.9, max_gen_len=2)
        else:
            codes = t3.inference(t3_cond=voice, text_tokens=texts, min_p=0.1, max_new_tokens=3)
        return int(((codes[0] + 1) * 5 ** torch.arange(codes.shape[1])).sum())

    check_accelerated_samples(t3, sample, 400, 4)


@pytest.mark.parametrize(
    ("make", "asked", "reason"),
    [
        (lambda: stand_in.ChatterboxTTS(stand_in.T3(multilingual=True)), {}, "the multilingual model ends a text by"),
        (stand_in.ChatterboxTTS, {"temperature": -1.0}, "temperature=-1.0 is not possible"),
        (lambda: stand_in.ChatterboxTurboTTS(positions=30), {}, "exceed 30 positions"),
        (lambda: stand_in.ChatterboxTTS(changed()), {}, "another package has set inference"),
    ],
    ids=["multilingual", "temperature", "positions", "class of another package"],
)
def test_what_runs_as_before(make: Any, asked: Any, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    def outcome() -> str:
        try:
            return str(speak(model, **asked))
        except (ValueError, IndexError) as error:
            return repr(error)

    model = make()
    own = outcome()
    mmspec.accelerate(model)
    assert outcome() == own == outcome()
    (note,) = notes(caplog)  # once
    assert ".inference" in note and reason in note


def changed() -> Any:
    """A T3 of a class that has an `inference` of its own."""

    class Changed(stand_in.T3):
        def inference(self, **named: Any) -> Tensor:
            return super().inference(**named).flip(-1)

    return Changed()


def test_what_is_set_on_top_and_before_stays(caplog: pytest.LogCaptureFixture) -> None:
    model: Any = stand_in.ChatterboxTTS()
    own = speak(model, **GREEDY["english"])
    mmspec.accelerate(model)
    ours = model.t3.inference
    model.t3.inference = lambda **named: ours(**named).flip(-1)
    with pytest.raises(ArgumentError, match="is not accelerated"):
        mmspec.last_stats(model)
    mmspec.accelerate(model, enabled=False)
    assert torch.equal(speak(model, **GREEDY["english"]), own.flip(-1))
    mmspec.accelerate(model)
    assert torch.equal(speak(model, **GREEDY["english"]), own.flip(-1)) and "another package" in notes(caplog)[0]


def test_copies_are_accelerated_and_taken_off_alone() -> None:
    model: Any = mmspec.accelerate(stand_in.ChatterboxTurboTTS(), "scd:window=4")
    own = speak(model, **GREEDY["turbo"])
    other = copy.deepcopy(model)
    assert other.t3.inference_turbo.owner is other.t3 and torch.equal(speak(other, **GREEDY["turbo"]), own)
    mmspec.accelerate(other, enabled=False)
    assert "inference_turbo" not in vars(other.t3) and "inference_turbo" in vars(model.t3)


def test_a_first_code_that_is_an_end_ends_no_text_of_turbo() -> None:
    t3 = stand_in.T3(is_gpt=True)
    t3.speech_head.bias[t3.hp.stop_speech_token] = 50.0
    call: dict[str, Any] = {
        "t3_cond": torch.ones(1, 2, stand_in.WIDTH),
        "text_tokens": torch.tensor([[1, 2]]),
        "max_gen_len": 9,
    }
    own = t3.inference_turbo(**call, top_k=1)
    assert own.tolist() == [[t3.hp.stop_speech_token]]
    with mmspec.accelerated(t3, "scd:window=4"):
        assert torch.equal(t3.inference_turbo(**call, top_k=1), own)
