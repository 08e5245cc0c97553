"""Step-Audio 2 from a folder, against prompts, tokens, codes and probabilities of its package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_step_audio2 as tiny
from part_runs import decode_rows, distance_of_probs
from tiny_chatterbox import Levels

import mmspec
from mmspec.audio.models.flat.step_audio2 import CODES, step_audio2_style
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "step_audio2.json").read_text())
CALLS = GOLDEN["calls"]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The adapter of a folder, whose parts have as many tokens as were recorded."""
    folder = tiny.step_audio2(tmp_path_factory.mktemp("step_audio2"))
    found = mmspec.load(str(folder), config={"codec": Levels(CODES)}).adapter
    object.__setattr__(found.style, "tokens", GOLDEN["length"])
    return found


def parts(adapter: Any) -> list[Any]:
    return [adapter.read(call["text"], None).parts[0] for call in CALLS]


@pytest.mark.releases
@pytest.mark.parametrize("recipe", ["plain", "scd:window=6", "recycle:window=4"])
def test_greedy_answers_are_the_packages(adapter: Any, recipe: str) -> None:
    """Four prompts of several lengths in a batch; two end, and one has the code that is padding."""
    rows = parts(adapter)
    assert [part.ids for part in rows] == [call["prompt"] for call in CALLS]
    found = decode_rows(adapter, rows, parse(recipe), SamplingParams(0.0), range(4))
    for tokens, call in zip(found, CALLS, strict=True):
        assert tokens.tolist()[: len(call["tokens"])] == call["tokens"]
        # The package takes the last token for the end, also of an answer that is cut.
        assert adapter.codes(tokens[: len(call["tokens"]) - 1])[0].tolist() == call["codes"] and len(call["codes"])
    assert any(tiny.FIRST + CODES in call["tokens"] for call in CALLS)


def test_probabilities_are_the_packages(adapter: Any) -> None:
    """The top-k is that of transformers' generate, which the package's call does not name."""

    def distance(params: SamplingParams) -> float:
        rows = zip(parts(adapter), CALLS, strict=True)
        return max(distance_of_probs(adapter, part, params, call["tokens"], call["probs"]) for part, call in rows)

    assert distance(adapter.sampling) < 1e-5
    assert distance(SamplingParams(adapter.sampling.temperature)) > 1e-4


def test_a_system_prompt_says_what_is_done(tmp_path: Path, adapter: Any) -> None:
    words, model = adapter.tokenizer, adapter.model
    style = step_audio2_style(model.config, words, "So")
    turns = "<|BOT|>system\nSo<|EOT|><|BOT|>human\nYes<|EOT|><|BOT|>assistant\n<tts_start>"
    assert style.prompt(words, "Yes", None) == words(turns)["input_ids"]
    with pytest.raises(PromptError, match=r"text contains '<\|EOT\|>', a mark of the prompt; leave it out"):
        style.prompt(words, "Yes<|EOT|>", None)
    folder = str(tiny.step_audio2(tmp_path))
    with pytest.raises(ArgumentError, match="Step-Audio 2 comes without a codec; pass one around the token2wav of its"):
        mmspec.load(folder)
    model.config.vocab_size -= 500
    with pytest.raises(
        ModelError, match="<audio_0> to <audio_6561> as 151696 to 158257 and <.EOT.> as 151681, the mod"
    ):
        step_audio2_style(model.config, words)
    model.config.vocab_size += 500
    file = tmp_path / "config.json"
    found = json.loads(file.read_text())
    file.write_text(json.dumps({**found, "text_config": {**found["text_config"], "vocab_size": 1000}}))
    with pytest.raises(ModelError, match="is not a Step-Audio 2: AssertionError: Padding_idx must be within num_embed"):
        mmspec.load(folder, config={"codec": Levels(CODES)})
