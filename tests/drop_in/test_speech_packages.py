"""Objects of coqui-tts, which calls `generate` of a model of transformers: stand-ins of its classes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_xtts import SETTINGS, Gpt, prompts

import mmspec
from mmspec.errors import ArgumentError

pytestmark = pytest.mark.releases


def of(package: str, name: str, **attributes: Any) -> Any:
    """An object of a class of a package."""
    made = type(name, (), {"__module__": f"{package}.models"})()
    vars(made).update(attributes)
    return made


def coqui() -> Any:
    """An `Xtts` within the `TTS` that people call."""
    return of("TTS", "TTS", synthesizer=SimpleNamespace(tts_model=of("TTS", "Xtts", gpt=Gpt())))


def test_xtts_within_the_class_that_people_call() -> None:
    tts = coqui()
    gpt = tts.synthesizer.tts_model.gpt
    own = gpt.generate(*prompts(), do_sample=False, **SETTINGS)
    for obj in (tts, tts.synthesizer.tts_model):
        with mmspec.accelerated(obj, "scd:window=4"):
            assert torch.equal(gpt.generate(*prompts(), do_sample=False, **SETTINGS), own)
            assert mmspec.last_stats(obj) is not None
    assert "generate" not in vars(gpt.gpt_inference)


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (of("TTS", "TTS", synthesizer=None), "obj is a TTS without synthesizer.tts_model"),
        (type("Vits", (type(of("TTS", "BaseTTS")),), {})(), "of coqui-tts, XTTS is the model whose codes"),
        (of("outetts", "InterfaceHF"), "penalty does not run beside transformers 5, and its other engines"),
        (of("moshi", "LMGen"), "each of its steps returns one frame"),
        (of("audiocraft", "MusicGen"), "MusicgenForConditionalGeneration of transformers, which is accelerated"),
        (of("audiocraft", "MAGNeT"), "mmspec.load decodes its folder"),
        (type("AudioGen", (type(of("audiocraft", "BaseGenModel")),), {})(), "no rejected draft is cut"),
        (of("dia", "Dia"), "DiaForConditionalGeneration of transformers, which is accelerated"),
        (of("cosyvoice", "CosyVoice"), "CosyVoice 2 and 3 are accelerated"),
    ],
    ids=[
        "not loaded",
        "vits",
        "outetts",
        "moshi",
        "musicgen",
        "magnet",
        "audiogen",
        "dia",
        "cosyvoice",
    ],
)
def test_what_is_refused(obj: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        mmspec.accelerate(obj)
