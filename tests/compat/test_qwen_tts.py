"""The classes of qwen-tts under their names: what the package itself returned for the same calls."""

from __future__ import annotations

import base64
import inspect
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import golden_qwen3_tts as golden
import numpy as np
import pytest
import soundfile
import torch

from mmspec.compat.qwen_tts import DEFAULTS, Qwen3TTSModel, VoiceClonePromptItem
from mmspec.errors import ArgumentError, ModelError, UnknownNameError

pytestmark = pytest.mark.releases

GREEDY = {"do_sample": False, "subtalker_dosample": False, "max_new_tokens": golden.recorded()["length"]}
REFERENCE = golden.expected()["reference"].numpy()


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Qwen3TTSModel]:
    """Loads a model of a kind."""
    folder = tmp_path_factory.mktemp("qwen")

    def load(kind: str) -> Qwen3TTSModel:
        if not (folder / kind).exists():
            golden.copy(folder / kind, kind)
        return Qwen3TTSModel.from_pretrained(
            str(folder / kind), device_map="cpu", dtype=torch.float32, attn_implementation="flash_attention_2"
        )

    return load


@pytest.mark.parametrize("case", golden.CASES, ids=lambda case: case.name)
def test_calls_return_what_the_package_returns(case: golden.Case, load: Any) -> None:
    """The same arguments and types; codes and audio of greedy search."""
    kind = "base" if case.clone else case.name.removesuffix("_streaming")
    model = load(kind)
    call = model.generate_voice_clone if case.clone else getattr(model, f"generate_{kind}")
    voice = {"ref_audio": (REFERENCE, 24000)} if case.clone else {}
    waves, rate = call(**case.call, **voice, **GREEDY)
    assert rate == 24000 and isinstance(waves, list) and len(waves) == case.count
    for row, wave in enumerate(waves):
        assert wave.dtype == np.float32 and wave.ndim == 1
        assert len(wave) == 240 * len(golden.expected()[f"{case.name}.codes.{row}"])
        if (audio := golden.expected().get(f"{case.name}.audio.{row}")) is not None:
            np.testing.assert_allclose(wave, audio.numpy(), atol=1e-5)
    assert model.stats is not None and model.stats.target_calls <= model.stats.tokens


def test_voices_are_made_once_and_used_again(load: Any, tmp_path: Path) -> None:
    model, case = load("base"), golden.recorded()["cases"]["clone"]
    soundfile.write(tmp_path / "voice.wav", REFERENCE, 24000, subtype="FLOAT")
    content = base64.b64encode((tmp_path / "voice.wav").read_bytes()).decode()
    stereo = np.stack([REFERENCE, REFERENCE], axis=1)
    recordings = [(REFERENCE, 24000), str(tmp_path / "voice.wav"), content, f"data:audio/wav;base64,{content}"]
    items: Any = model.create_voice_clone_prompt([*recordings, (stereo, 24000)], case["ref_text"])
    for item in items:
        assert isinstance(item, VoiceClonePromptItem) and (item.icl_mode, item.x_vector_only_mode) == (True, False)
        assert item.ref_code is not None and torch.equal(item.ref_code, golden.expected()["reference_codes"])
        torch.testing.assert_close(item.ref_spk_embedding, golden.expected()["speaker"], atol=1e-4, rtol=1e-4)
    own, _ = model.generate_voice_clone(case["text"], case["language"], voice_clone_prompt=items[:1], **GREEDY)
    for row, wave in enumerate(own):
        np.testing.assert_allclose(wave, golden.expected()[f"clone.audio.{row}"].numpy(), atol=1e-5)
    (alone,) = model.create_voice_clone_prompt((REFERENCE, 24000), x_vector_only_mode=True)
    assert alone.ref_code is None
    fields = ("ref_code", "ref_spk_embedding", "x_vector_only_mode", "icl_mode")
    as_mapping = {name: [getattr(alone, name)] for name in fields}
    for given in ([alone], as_mapping):
        waves, _ = model.generate_voice_clone("Hi", voice_clone_prompt=given, **GREEDY)
        np.testing.assert_allclose(waves[0], golden.expected()["clone_speaker_only.audio.0"].numpy(), atol=1e-5)


def test_samples_follow_torchs_seed_and_settings(load: Any) -> None:
    model = load("custom_voice")

    def speak(seed: int, **settings: Any) -> Any:
        torch.manual_seed(seed)
        return model.generate_custom_voice("Hi there.", "Ann", max_new_tokens=9, **settings)[0][0]

    first, again, other, cold = speak(0), speak(0), speak(1), speak(0, top_k=1, subtalker_top_k=1)
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert np.array_equal(cold, speak(1, do_sample=False, subtalker_dosample=False))
    assert model.get_supported_speakers() == ["ann", "bob"]
    assert model.get_supported_languages() == ["auto", "chinese", "english"]


def test_a_limit_may_be_larger_than_the_model(load: Any) -> None:
    """The package's generate takes any number, and ends with the text."""
    model, made = load("custom_voice"), []
    for limit in (400, 10**400, float("inf")):
        torch.manual_seed(0)
        made.append(model.generate_custom_voice("Hi there.", "Ann", max_new_tokens=limit)[0][0])
    assert 0 < len(made[0]) < 399 * 240 and all(np.array_equal(made[0], each) for each in made[1:])


def test_tuples_are_lists_of_texts(load: Any) -> None:
    model = load("custom_voice")
    waves, _ = model.generate_custom_voice(("Hi there.", "Hi."), ("ann", "bob"), ("auto", None), **GREEDY)
    alone, _ = model.generate_custom_voice("Hi.", "bob", **GREEDY)
    assert len(waves) == 2 and np.allclose(waves[1], alone[0], atol=1e-5)


def test_the_recipe_is_set_by_name(load: Any) -> None:
    model = load("custom_voice")
    own = model.generate_custom_voice("Hi.", "ann", **GREEDY)[0][0]
    model.recipe = "scd:window=3"
    assert np.allclose(model.generate_custom_voice("Hi.", "ann", **GREEDY)[0][0], own, atol=1e-5)
    with pytest.raises(UnknownNameError, match="unknown recipe 'zzz'"):
        model.recipe = "zzz"
    assert str(model.recipe) == "scd:window=3"


def test_the_settings_are_those_of_the_package() -> None:
    """tests/packages compares with the package."""
    assert list(DEFAULTS)[:3] == ["do_sample", "top_k", "top_p"] and DEFAULTS["max_new_tokens"] == 2048
    named = inspect.signature(Qwen3TTSModel.generate_custom_voice).parameters
    assert list(named) == ["self", "text", "speaker", "language", "instruct", "non_streaming_mode", "settings"]


def clone(model: Qwen3TTSModel, vector: Any = "own", codes: Any = None, text: str | None = "b") -> Any:
    """Speaks with a voice that was not made for the model."""
    sizes = [model.model.model.config.talker.hidden_size] if vector == "own" else vector
    own = torch.zeros(4, 4).long() if codes is None else codes
    item = VoiceClonePromptItem(own, None if sizes is None else torch.zeros(sizes), False, True, text)  # type: ignore[arg-type]
    return model.generate_voice_clone("a", voice_clone_prompt=[item])


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        ("base", lambda m: m.generate_voice_design("a", "b"), "this is a base model; it needs one of kind voice_desig"),
        ("base", lambda m: m.generate_voice_clone("a"), "ref_audio is missing; give a recording"),
        ("base", lambda m: m.generate_voice_clone("a", ref_audio=(REFERENCE, 24000)), "ref_text is missing"),
        ("base", lambda m: m.create_voice_clone_prompt("none.wav", "a"), "'none.wav' is not a readable recording"),
        ("base", lambda m: m.create_voice_clone_prompt(REFERENCE, "a"), "it must be a path, an address, base64, or (a"),
        ("base", lambda m: m.create_voice_clone_prompt("a" * 301, "a"), "is not base64"),
        ("custom_voice", lambda m: m.generate_custom_voice("a", "Tom"), "speaker='Tom' is not allowed; it is one of a"),
        ("custom_voice", lambda m: m.generate_custom_voice("a", "ann", "no"), "language='no' is not allowed"),
        ("custom_voice", lambda m: m.generate_custom_voice(["a"] * 3, ["ann"] * 2), "speaker has 2 items; it must hav"),
        ("custom_voice", lambda m: m.generate_custom_voice("a", "ann", 5), "language=5 is not allowed; it must be"),
        ("custom_voice", lambda m: m.generate_custom_voice("a", 3), "speaker=3 is not allowed; it must be a text, or"),
        ("custom_voice", lambda m: m.generate_custom_voice([], "ann"), "text=[] is not allowed; it must be a text"),
        ("custom_voice", lambda m: m.generate_custom_voice(None, "ann"), "text=None is not allowed; it must be a text"),
        ("custom_voice", lambda m: m.generate_custom_voice("a", "ann", max_new_tokens="x"), "max_new_tokens='x'"),
        ("custom_voice", lambda m: m.generate_custom_voice("a", "ann", max_new_tokens=np.nan), "max_new_tokens=nan"),
        ("custom_voice", lambda m: m.generate_custom_voice("a", "ann", max_new_tokens=-np.inf), "max_new_tokens=-inf"),
        ("base", lambda m: m.generate_voice_clone("a", voice_clone_prompt="b"), "voice_clone_prompt must be what"),
        ("base", lambda m: m.generate_voice_clone("a", voice_clone_prompt={}), "voice_clone_prompt must have lists of"),
        ("base", lambda m: m.create_voice_clone_prompt(Path("none.wav"), "a"), "'none.wav' is not a readable recordi"),
        ("custom_voice", lambda m: m.generate_custom_voice("a", "ann", num_beams=2), "num_beams is not an argument"),
        ("custom_voice", lambda m: m.generate_custom_voice("a", "ann", max_new_tokens=1), "max_new_tokens=1 is not"),
        ("custom_voice", lambda m: m.generate_custom_voice("a", "ann", temperature=-1), "temperature=-1 is not"),
        ("custom_voice", lambda m: m.generate_custom_voice("a", "ann", subtalker_top_p=2), "subtalker_top_p=2 is not"),
        ("base", lambda m: clone(m, vector=[3]), "ref_spk_embedding of shape [3] and type torch.float32; it"),
        ("base", lambda m: clone(m, vector=None), "voice_clone_prompt has a ref_spk_embedding None; it must be floats"),
        ("base", lambda m: clone(m, codes=torch.zeros(5, 3).long()), "has codes of shape [5, 3] and type torch.int64"),
        ("base", lambda m: clone(m, codes=torch.full((5, 4), 16)), "they must be integers [frames, 4], 0 to 15"),
        ("base", lambda m: clone(m, codes="abc"), "codes='abc' is not allowed; it must be a tensor of integers"),
        ("base", lambda m: clone(m, text=None), "has no ref_text or no ref_code, which icl_mode needs"),
    ],
)  # fmt: skip
def test_what_is_refused(kind: str, wrong: Any, message: str, load: Any) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)) as error:
        wrong(load(kind))
    assert "\n" not in str(error.value) and isinstance(error.value, ValueError)  # which the package raises


def test_other_models_and_devices_are_refused() -> None:
    with pytest.raises(ModelError, match="'spoken' is not a Qwen3-TTS"):
        Qwen3TTSModel.from_pretrained("spoken")
    for device_map in ({"a": 0}, True, -1):
        with pytest.raises(ArgumentError, match=f"device_map={device_map} is not allowed; it must be one device"):
            Qwen3TTSModel.from_pretrained("spoken", device_map=device_map)


def test_a_recording_is_fetched(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    soundfile.write(file, REFERENCE, 24000, format="WAV", subtype="FLOAT")
    file.seek(0)
    monkeypatch.setattr("urllib.request.urlopen", lambda address, timeout: file)
    (item,) = load("base").create_voice_clone_prompt("https://host/voice.wav", "One two.")
    assert torch.equal(item.ref_code, golden.expected()["reference_codes"])
