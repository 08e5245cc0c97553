"""MiniCPM-o 4.5 from a folder, against prompts, codes and probabilities of the original."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_minicpm_o as tiny
from part_runs import decode_rows, distance_of_probs
from tiny_chatterbox import Levels

import mmspec
from mmspec.audio.models.codec_lm import minicpm_o
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "minicpm_o.json").read_text())
CALLS, LENGTH = GOLDEN["calls"], GOLDEN["length"]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The adapter of a folder, whose parts have as many codes as were recorded."""
    folder = tiny.minicpm_o(tmp_path_factory.mktemp("minicpm_o"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minicpm_o, "MAX_CODES", LENGTH)
        yield mmspec.load(str(folder), config={"codec": Levels(tiny.CODES)}).adapter


def parts(adapter: Any) -> list[Any]:
    return [adapter.read(call["text"], None).parts[0] for call in CALLS]


@pytest.mark.releases
@pytest.mark.parametrize("recipe", ["plain", "scd:window=6", "recycle:window=4"])
def test_greedy_codes_are_the_originals(adapter: Any, recipe: str) -> None:
    """Three texts in a batch. The original takes the last code for the end, also of a text that is cut."""
    found = decode_rows(adapter, parts(adapter), parse(recipe), SamplingParams(0.0), range(3))
    for tokens, call in zip(found, CALLS, strict=True):
        assert adapter.codes(tokens)[0].tolist()[: LENGTH - 1] == call["codes"]
    assert len({len(call["codes"]) for call in CALLS}) > 1


def test_the_language_model_says_the_text_as_by_the_original(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[list[int]]()
    monkeypatch.setattr(adapter.frontend._model, "read", lambda before, ids: asked.append(before + ids))
    for call in CALLS:
        adapter.frontend._prompt(call["text"])
        assert call["prompt"][: len(asked[-1])] == asked[-1]
    words = adapter.frontend._tokenizer.decode(asked[-1]).replace(" ", "")
    assert words.endswith("<|tts_bos|>Yes,no.")
    assert adapter.answers  # a server reads texts where no other request waits


def test_probabilities_are_the_originals(adapter: Any) -> None:
    """At its defaults: 50 codes and more, of which the first is not truncated, and the end has none before."""

    def distance(sampling: SamplingParams) -> float:
        each = zip(parts(adapter), CALLS, strict=True)
        return max(distance_of_probs(adapter, part, sampling, call["codes"], call["probs"]) for part, call in each)

    assert adapter.sampling == SamplingParams(0.8, 25, 0.85) and distance(adapter.sampling) < 1e-5
    for other in (SamplingParams(0.81, 25, 0.85), SamplingParams(0.8, 5, 0.85), SamplingParams(0.8, 25, 0.84)):
        assert distance(other) > 1e-3


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"num_vq": 4}, "num_vq=4 in its tts_config; 1 is supported, which MiniCPM-o 4.5 has"),
        ({"condition_type": "llm_hidden"}, "condition_type='llm_hidden' in its tts_config; 'hidden_text_merge' is"),
        ({"llm_dim": 20}, "llm_dim=20 in its tts_config, and a width of 16"),
        ({"text_eos_token_id": 151}, r"text_eos_token_id and audio_bos_token_id of \(151, 140\), and 150 ids of text"),
        ({"hidden_size": "x"}, "hidden_size='x' in its config.json, which is not allowed"),
        ({"num_audio_tokens": 9}, r"does not fit a MiniCPMO; wrong shape: tts.emb_code.0.weight \[31, 12\] instead"),
        (None, "has no tts_config in its config.json"),
    ],
)
def test_other_models_are_refused(own: Any, message: str, tmp_path: Path) -> None:
    file = tiny.minicpm_o(tmp_path) / "config.json"
    found = json.loads(file.read_text())
    file.write_text(json.dumps({**found, "tts_config": None if own is None else {**found["tts_config"], **own}}))
    with pytest.raises(ModelError, match=message):
        mmspec.load(str(tmp_path), config={"codec": Levels(tiny.CODES)})


def test_errors(tmp_path: Path) -> None:
    folder = str(tiny.minicpm_o(tmp_path))
    with pytest.raises(
        ArgumentError, match="MiniCPM-o comes without a codec; pass one around the token2wav of its fol"
    ):
        mmspec.load(folder)
    with pytest.raises(ArgumentError, match="draft_model is not possible for MiniCPM-o"):
        mmspec.load(folder, config={"codec": Levels(tiny.CODES), "draft_model": folder})
    with pytest.raises(PromptError, match=r"text contains '<\|tts_eos\|>', a mark of the prompt; leave it out"):
        mmspec.load(folder, config={"codec": Levels(tiny.CODES)})("Yes<|tts_eos|>")
    words = tiny.tokenizer()
    words.chat_template = "{{ raise_exception('no system prompts') }}"
    with pytest.raises(PromptError, match="text='a' cannot be read by the processor of this model: no system prompts"):
        mmspec.load(folder, processor=words, config={"codec": Levels(tiny.CODES)})("a")
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(ArgumentError, match="processor writes no chat, which MiniCPM-o reads: ValueError: "):
        mmspec.load(folder, config={"codec": Levels(tiny.CODES)})("a")
