"""The speech pipeline of Higgs Audio: prompts, voices, speakers, chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
import published
import pytest
import tiny_higgs
import torch
from numpy.typing import NDArray
from part_runs import decode_rows

import mmspec
from mmspec.audio.models.higgs.prompt import SCENE, SYSTEM, clean
from mmspec.errors import ArgumentError, PromptError
from mmspec.recipes import parse


def wave(samples: int = 9600) -> NDArray[np.float32]:
    return (0.3 * np.sin(np.arange(samples) * 0.3))[None].astype(np.float32)


def message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}]}


def documented(processor: Any, messages: list[dict[str, Any]]) -> Any:
    """The inputs that the documentation of transformers makes of a conversation."""
    return processor.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt", sampling_rate=24000,
    )  # fmt: skip


def test_prompts_are_those_of_the_documented_call() -> None:
    pipe = mmspec.load(tiny_higgs.model(), processor=tiny_higgs.processor())
    quiet = mmspec.load(tiny_higgs.model(), processor=tiny_higgs.processor(), config={"scene": None})
    for text in published.HARD_TEXTS:
        turns = [message("system", SYSTEM), message("scene", SCENE), message("user", clean(text))]
        for each, messages in ((pipe, turns), (quiet, [turns[0], turns[2]])):
            (part,) = each.read(text, None).parts
            wanted = documented(each.adapter.processor, messages)["input_ids"][0]
            assert torch.equal(each.adapter._prompt(part).ids, wanted)


def test_texts_are_cleaned_as_in_the_examples_of_the_original_code() -> None:
    assert clean("它是 25°C（很热）、对吧") == "它是 25 degrees Celsius 很热 ,对吧."
    assert clean(" two\n\n  words [laugh]") == "two\nwords <SE>[Laughter]</SE>"
    assert clean("[SPEAKER0] Hi!") == "[SPEAKER0] Hi!"


def test_speakers_are_described_unless_there_is_reference_audio() -> None:
    pipe = mmspec.load(tiny_higgs.model(), processor=tiny_higgs.processor(), config={"frames": 20})
    script = "[SPEAKER0] Yes? [SPEAKER1] No."
    decode = pipe.adapter.processor.tokenizer.decode
    (part,) = pipe.read(script, None).parts
    shown = decode(pipe.adapter._prompt(part).ids).replace(" ", "").replace("Ġ", " ").replace("Ċ", "\n")
    assert f"{SCENE}\n\nSPEAKER0: feminine\nSPEAKER1: masculine\n<|scene_desc_end|>" in shown
    assert "You are an AI assistant designed to convert text into speech.\nIf the user's message" in shown
    voiced = pipe.with_reference_audio(wave(), 24000, "Mine.").adapter
    (part,) = voiced.read(script, None).parts
    assert "feminine" not in decode(voiced._prompt(part).ids).replace(" ", "")


@pytest.mark.releases
def test_a_voice_matches_the_models_own_generate() -> None:
    model, processor = tiny_higgs.model(3), tiny_higgs.processor()
    pipe = mmspec.load(model, processor=processor, config={"frames": 20}).with_reference_audio(wave(), 24000, "Mine.")
    audio = {"role": "assistant", "content": [{"type": "audio", "audio": wave()[0]}]}
    turns = [message("system", SYSTEM), message("scene", SCENE), message("user", "Mine."), audio]
    inputs = documented(processor, [*turns, message("user", "Hello.")])
    (part,) = pipe.read("Hello", None).parts
    prompt = pipe.adapter._prompt(part)
    assert torch.equal(prompt.ids, inputs["input_ids"][0])
    assert torch.equal(prompt.columns, inputs["audio_input_ids"][0])
    own = model.generate(**inputs, max_new_tokens=23, do_sample=False)[0, len(prompt.columns) :]
    for recipe in ("plain", "scd:window=4"):
        out = pipe(["Hello", "And a longer one?"], recipe=recipe, temperature=0, seed=0)
        assert torch.equal(out[0].tokens[0][: len(own)], own)


def test_a_row_whose_repetition_is_limited_does_not_depend_on_its_batch() -> None:
    model = tiny_higgs.model(3)
    model.generation_config.ras_win_len, model.generation_config.ras_win_max_num_repeat = 4, 2
    pipe = mmspec.load(model, processor=tiny_higgs.processor(), config={"frames": 20})
    drawn: dict[str, Any] = {"temperature": 0.8, "top_k": 10, "recipe": "sjd:window=3"}
    both = pipe(["slow quiet piano", "loud"], seed=7, **drawn)
    again = pipe("loud", seed=8, **drawn)
    assert torch.equal(again.tokens[0][: len(both[1].tokens[0])], both[1].tokens[0])
    codes = pipe.adapter.codes(again.tokens[0])
    assert codes.shape[0] == 3 and codes.max() < 16 and again.audio.shape == (1, 960 * codes.shape[1])
    # Two parts, one after another with a longer prompt, with the repetition limit counting the latest columns.
    adapter = pipe.adapter
    (first,), (part,) = adapter.read("one", None).parts, adapter.read("two", None).parts
    longer = adapter.continue_voice(part, first, again.tokens[0])
    alone = decode_rows(adapter, [longer], parse("plain"), adapter.sampling, [3])[0]
    mates = decode_rows(adapter, [part, longer], parse("plain"), adapter.sampling, [9, 3])[1]
    assert torch.equal(mates[: len(alone)], alone[: len(mates)])


def test_a_row_without_frames_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = mmspec.load(tiny_higgs.model(3), processor=tiny_higgs.processor(), config={"frames": 6})
    none = torch.full((3, 0), 0)
    monkeypatch.setattr(pipe.adapter, "codes", lambda tokens: none)
    assert pipe("one", seed=0).audio.shape == (1, 0)
    assert list(pipe.stream("one", seed=0)) == []


def test_errors() -> None:
    model, processor = tiny_higgs.model(), tiny_higgs.processor()
    pipe = mmspec.load(model, processor=processor)
    with pytest.raises(PromptError, match="text contains '<|AUDIO_OUT|>', which stands for audio".replace("|", r"\|")):
        pipe("Say <|AUDIO_OUT|>.")
    with pytest.raises(ArgumentError, match="config has 'scenes', which Higgs does not have .did you mean 'scene'"):
        mmspec.load(model, processor=processor, config={"scenes": "x"})
    with pytest.raises(ArgumentError, match="transcript of the reference audio is missing; Higgs Audio continues"):
        pipe.with_reference_audio(wave(), 24000)
