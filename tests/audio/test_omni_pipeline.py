"""Qwen3-Omni as a speech pipeline: a text is answered, and the answer is spoken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import published
import pytest
import tiny_omni as tiny
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import mmspec
from mmspec.errors import ArgumentError, ModelError
from mmspec.hf.folder import ASKED_IN_TEXT, read_processor
from mmspec.hub.files import needed_files

NOTES = pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`")
ASKED = ["3 4 5 6", "3 9", "7 7 7 8 8 9"]


class Chat:
    """A tokenizer whose texts are ids."""

    def apply_chat_template(self, messages: Any, add_generation_prompt: bool, tokenize: bool) -> str:
        assert add_generation_prompt and not tokenize
        turns = [turn["content"][0]["text"] for turn in messages if turn["role"] == "user"]
        return " ".join(map(str, tiny.prompts([[int(n) for n in turns[0].split()]])["input_ids"][0].tolist()))

    def __call__(self, text: str, return_tensors: str) -> dict[str, Tensor]:
        return {"input_ids": torch.tensor([[int(n) for n in text.split()]])}

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return " ".join(map(str, ids))


def load(model: Any, **options: Any) -> Any:
    return mmspec.load(model, processor=Chat(), config={"frames": 9, "answer_tokens": 6, **options})


@pytest.mark.releases
@NOTES
@pytest.mark.parametrize(("recipe", "ahead"), [("plain", 0), ("scd:window=3", 0), ("scd", 2)])
def test_greedy_answers_are_those_of_its_own_generate(recipe: str, ahead: int) -> None:
    """Three questions of different lengths in a batch; the model's own `generate` is asked each alone."""
    model = tiny.qwen3(3, codes=5, spread=0.3)
    made = load(model, ahead=ahead)(ASKED, recipe=recipe, temperature=0)
    spy, pipe = tiny.Spy(model), load(model)
    lengths = set()
    for text, ours in zip(ASKED, made, strict=True):
        ids, wave = model.generate(**chat(text), **THINKER, talker_max_new_tokens=10, talker_do_sample=False)
        answer = ids[0, len(text.split()) + 6 :].tolist()
        assert ours.notes[0] == "answer: " + " ".join(map(str, answer))
        frames = pipe.adapter.codes(ours.tokens[0]).T
        assert torch.equal(frames, spy.frames()[0])
        lengths.add(len(frames))
        np.testing.assert_allclose(ours.audio[0, : wave.shape[-1]], wave.flatten().numpy(), atol=1e-5)
    assert len(lengths) > 1


THINKER: dict[str, Any] = {"thinker_max_new_tokens": 6, "thinker_do_sample": False}


def chat(text: str) -> dict[str, Tensor]:
    return tiny.prompts([[int(n) for n in text.split()]])


@NOTES
def test_samples_are_those_of_its_own_generate_with_mmspec() -> None:
    """At their defaults and with one seed, which tells the processors and all sampling parameters."""
    model = tiny.qwen3(3, spread=0.3)
    pipe, spy = load(model, frames=30), tiny.Spy(model)
    ours = pipe(ASKED[0], seed=5, recipe="scd:window=3")
    how = {"talker_custom_generate": mmspec.generate, "talker_seed": 5, "talker_recipe": "scd:window=3"}
    model.generate(**chat(ASKED[0]), **THINKER, talker_max_new_tokens=31, **how)
    frames = pipe.adapter.codes(ours.tokens[0]).T
    assert len(frames) > 5 and torch.equal(frames, spy.frames()[0].clamp(max=15))  # the codec has 16 codes


def test_voices() -> None:
    pipe = load(tiny.qwen3(3, codes=5, spread=0.3))
    assert pipe.adapter.voices == ("ethan", "aiden") and pipe.adapter.answers
    prompts = [pipe.read(ASKED[1], voice).parts[0].embeds for voice in pipe.adapter.voices]
    assert not torch.allclose(*prompts)
    with pytest.raises(ArgumentError, match="voice='ethan' is not possible for a prepared text"):
        pipe.read(pipe.read(ASKED[0], None), "ethan")
    engine, results = mmspec.Engine(pipe), list[Any]()
    engine.add(pipe.read(ASKED[0], None), seed=3)  # a text that has been read
    while engine.has_unfinished:
        results += [output.result for output in engine.step() if output.finished]
    np.testing.assert_allclose(results[0].audio, pipe(ASKED[0], seed=3).audio, atol=1e-5)


def load_2_5(**options: Any) -> Any:
    model = tiny.qwen2_5(0)
    return mmspec.load(model, processor=Chat(), config={"frames": 9, "answer_tokens": 6, **options})


@pytest.mark.releases
@pytest.mark.parametrize("recipe", ["plain", "scd:window=4", "recycle:window=3"])
def test_qwen2_5_greedy_answers_are_those_of_its_own_generate(recipe: str) -> None:
    """Three questions in a batch; the model's own `generate` is asked each alone. Noise of its decoder too."""
    pipe = load_2_5()
    model = pipe.adapter.model
    made, spy, lengths = pipe(ASKED, recipe=recipe, temperature=0), tiny.Spy(model), set()
    for text, ours in zip(ASKED, made, strict=True):
        torch.manual_seed(0)
        ends = {"talker_max_new_tokens": 10, "talker_eos_token_id": [20, 22]}
        ids, wave = model.generate(**chat(text), **THINKER, **ends, talker_do_sample=False, speaker="chelsie")
        assert ours.notes[0] == "answer: " + " ".join(map(str, ids[0, len(text.split()) + 6 :].tolist()))
        new = spy.found[0, spy.given["input_ids"].shape[1] :]
        codes = pipe.adapter.codes(ours.tokens[0])[0]
        assert torch.equal(codes, new[: len(codes)]) and int(new[len(codes)]) in (20, 22)
        lengths.add(len(codes))
        np.testing.assert_allclose(ours.audio[0], wave.numpy(), atol=1e-4)
    assert len(lengths) > 1


def test_qwen2_5_samples_are_those_of_its_own_generate_with_mmspec() -> None:
    pipe = load_2_5()
    ours, spy = pipe(ASKED[0], seed=5, recipe="scd:window=3"), tiny.Spy(pipe.adapter.model)
    how = {"talker_custom_generate": mmspec.generate, "talker_seed": 5, "talker_recipe": "scd:window=3"}
    ends = {"talker_max_new_tokens": 10, "talker_eos_token_id": [20, 22]}
    pipe.adapter.model.generate(**chat(ASKED[0]), **THINKER, **ends, **how, speaker="chelsie")
    new = spy.found[0, spy.given["input_ids"].shape[1] :]
    codes = pipe.adapter.codes(ours.tokens[0])[0]
    assert len(codes) and torch.equal(codes, new[: len(codes)])


def test_qwen2_5_from_a_folder(tmp_path: Path) -> None:
    """Its speakers lie beside the weights, in a file of their own, which a download keeps."""
    model = tiny.qwen2_5(0)
    model.save_pretrained(tmp_path)
    torch.save(model.speaker_map, tmp_path / "spk_dict.pt")
    pipe = mmspec.load(str(tmp_path), processor=Chat(), config={"frames": 9, "answer_tokens": 6})
    assert torch.equal(pipe(ASKED[0], seed=3).tokens[0], load_2_5()(ASKED[0], seed=3).tokens[0])
    assert "spk_dict.pt" in needed_files([file.name for file in tmp_path.iterdir()], tmp_path)


def test_qwen2_5_from_a_folder_like_the_published_ones(tmp_path: Path) -> None:
    """Its config.json names a class of an early transformers, and its file has a buffer that is computed today."""
    model = tiny.qwen2_5(0)
    model.save_pretrained(tmp_path)
    torch.save(model.speaker_map, tmp_path / "spk_dict.pt")
    config, file = json.loads((tmp_path / "config.json").read_text()), tmp_path / "model.safetensors"
    config["architectures"] = published.read("qwen2.5-omni-3b", "config")["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    state, (unread,) = load_file(file), published.read("qwen2.5-omni-3b", "weights")["unread"]
    assert {"thinker.audio_tower.conv1.weight", "thinker.model.layers.0.input_layernorm.weight"} <= set(state)
    save_file(state | {unread: torch.ones(4)}, file, {"format": "pt"})
    pipe = mmspec.load(str(tmp_path), processor=Chat(), config={"frames": 9, "answer_tokens": 6})
    assert torch.equal(pipe(ASKED[0], seed=3).tokens[0], load_2_5()(ASKED[0], seed=3).tokens[0])


@pytest.mark.parametrize("name", ASKED_IN_TEXT)
@pytest.mark.parametrize("file", ["chat_template.json", "tokenizer_config.json"])
def test_texts_need_no_processor_of_videos(name: str, file: str, tmp_path: Path) -> None:
    """The processor of a published folder needs torchvision; its tokenizer and either place of the template do not."""
    tokenizer = published.llama_tokenizer({"<|im_start|>": 300, "<|im_end|>": 301}, r"\s+")
    tokenizer.save_pretrained(tmp_path)
    template = "{% for m in messages %}<|im_start|>{{ m['content'][0]['text'] }}<|im_end|>{% endfor %}"
    path = tmp_path / file
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**found, "chat_template": template}))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"processor_class": "Qwen2_5OmniProcessor"}))
    processor, messages = read_processor(tmp_path, name), [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == "<|im_start|>a<|im_end|>"
    assert processor(text)["input_ids"] == [300, *tokenizer("a")["input_ids"], 301]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"junk", "cannot be read"),
        ([1, 2], "contains a list instead of speakers by name"),
        ({"x": 5}, "has 'x', which is not a speaker"),
        ({"x": {"bos_token": 59}}, "has 'x', which is not a speaker"),
        (
            {"x": {"bos_token": 99999, "cond": torch.zeros(1, 8), "ref_mel": torch.zeros(1, 6, 8)}},
            "bos_token, below 60",
        ),
        ({"x": {"bos_token": 59, "cond": torch.zeros(1, 9), "ref_mel": torch.zeros(1, 6, 8)}}, r"cond \[1, 8\]"),
    ],
)
def test_qwen2_5_speakers_of_another_form_are_refused(content: Any, message: str, tmp_path: Path) -> None:
    model = tiny.qwen2_5(0)
    model.speaker_map.clear()
    model.name_or_path = str(tmp_path)
    if isinstance(content, bytes):
        (tmp_path / "spk_dict.pt").write_bytes(content)
    else:
        torch.save(content, tmp_path / "spk_dict.pt")
    with pytest.raises(ModelError, match=message):
        mmspec.load(model, processor=Chat())


def test_qwen2_5_errors() -> None:
    with pytest.raises(ArgumentError, match="which has no draft model"):
        load_2_5()("3", recipe="draft")


def test_errors() -> None:
    model = tiny.qwen3()
    with pytest.raises(ArgumentError, match="processor is a object that writes no chat"):
        mmspec.load(model, processor=object())("3")
    with pytest.raises(ArgumentError, match="draft_model is not possible"):
        load(model, draft_model=tiny.qwen3())
    with pytest.raises(ArgumentError, match="which has no draft model"):
        load(model)("3", recipe="draft")
    model.config.talker_config.speaker_id = None
    with pytest.raises(ModelError, match="the model has no speakers"):
        load(model)
    model.has_talker = False
    with pytest.raises(ModelError, match="the model has no talker"):
        load(model)
