"""Kani-TTS from its published folder, against codes and probabilities of its package; the convolutions of LFM2."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_codecs
import tiny_kani
import torch
from part_runs import decode_rows, distance_of_probs
from torch import Tensor

import mmspec
from mmspec.audio.codecs import codec_of
from mmspec.audio.models.flat import kani, short_convolutions
from mmspec.audio.models.flat.decoding import decoder_of
from mmspec.decoding.layout import Layout
from mmspec.decoding.target import Target
from mmspec.errors import ModelError
from mmspec.hf.causal_target import Backbone, CausalTarget, Prompt
from mmspec.hf.plan import position_ids_of
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.testing.adapters import check_samples, check_windows

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "kani.json").read_text())
TEXTS = [("one two three", None), ("two", "katie"), ("three. one", "andrew")]
FRAMES = len(GOLDEN["greedy"][0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_kani.kani(tmp_path_factory.mktemp("kani"), tiny_kani.SPEAKERS)


@pytest.fixture
def pipe(folder: Path) -> Any:
    codec = codec_of(tiny_codecs.mimi(codebooks=4, codebook_size=4096))
    made = mmspec.load(str(folder), config={"style": "kani", "codec": codec})
    object.__setattr__(made.adapter.style, "tokens", 4 * FRAMES)
    return made


def parts(pipe: Any) -> list[Any]:
    """The texts as parts; the first has no speaker, which the pipeline would name."""
    voices = pipe.adapter.voices
    found = []
    for text, voice in TEXTS:
        pipe.adapter.voices = voices if voice else ()
        found += pipe.read(text, voice).parts
    pipe.adapter.voices = voices
    return found


def test_prompts_are_the_packages(pipe: Any) -> None:
    assert [part.ids for part in parts(pipe)] == GOLDEN["prompts"]
    assert pipe.adapter.voices == ("andrew", "katie")
    assert pipe.read("two", None).parts[0].ids == pipe.read("two", "andrew").parts[0].ids


@pytest.mark.releases
@pytest.mark.parametrize(
    "recipe", ["plain", "scd:window=5", "layer-skip:layers=2,window=3", "tree:branch=2/1,layers=2"]
)
def test_greedy_codes_are_the_packages(pipe: Any, recipe: str) -> None:
    """Prompts of 9, 9 and 11 ids in a batch."""
    greedy = SamplingParams(0.0)
    found = decode_rows(pipe.adapter, parts(pipe), parse(recipe), greedy, [0, 1, 2])
    codes = [pipe.adapter.codes(row).T.tolist() for row in found]
    assert codes == GOLDEN["greedy"]


def test_probabilities_are_the_packages(pipe: Any) -> None:
    """The package's top-p, penalty and the top-k of transformers; the twin leaves the penalty out."""

    def distance(row: int) -> float:
        codes = torch.tensor(GOLDEN["greedy"][row]) + torch.arange(4) * kani.CODES + kani.FIRST_CODE - kani.END_SPEECH
        part, tokens, own = parts(pipe)[row], codes.flatten().tolist(), pipe.adapter.sampling
        return distance_of_probs(pipe.adapter, part, own, tokens, GOLDEN["probs"][row], first=kani.END_SPEECH)

    for row in range(3):
        assert distance(row) < 1e-5
    object.__setattr__(pipe.adapter.style, "processors", ())
    assert max(distance(row) for row in range(3)) > 1e-3


@pytest.mark.parametrize("settings", [[1], {"speaker_list": "ab"}, {"speaker_list": [1, 2]}, {"speaker_list": 5}, "x"])
def test_speakers_in_another_form_are_refused(settings: Any) -> None:
    with pytest.raises(ModelError, match="its speaker_list must be names"):
        kani.kani_style(SimpleNamespace(speaker_settings=settings), None)


def target_of(model: Any, lengths: list[int], length: int, window: int) -> Target:
    """A target of prompts of several lengths."""
    longest = max(lengths)
    mask = torch.arange(longest) >= longest - torch.tensor(lengths)[:, None]
    ids = (torch.arange(longest) % model.config.vocab_size).expand(len(lengths), -1)
    embed, size = model.get_input_embeddings(), model.config.vocab_size
    backbone = Backbone(decoder_of(model), embed, model.lm_head, size, model.device)
    return CausalTarget(backbone, Prompt(embed(ids), mask, position_ids_of(mask)), None, length, window)


def test_convolutions_are_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows after rejected ones give the logits of single tokens; inputs that are kept by order do not."""
    model = tiny_kani.model(vocab_size=30)

    def make(rows: int, window: int) -> Target:
        return target_of(model, [1, 7, 4][:rows], 12, window)

    assert check_windows(make, 12) < 1e-4
    own = short_convolutions.latest_slots

    def written_last(visible: Tensor, taps: int) -> tuple[Tensor, Tensor]:
        """Every token reads what the slot after it holds, as the state of a convolution that was not rolled back."""
        slots, known = own(visible, taps)
        return (slots + 1).clamp(max=visible.shape[-1] - 1), known

    monkeypatch.setattr(short_convolutions, "latest_slots", written_last)
    assert check_windows(make, 12) > 0.1


def test_samples_follow_the_target_distribution() -> None:
    model = tiny_kani.model(vocab_size=3)

    def make(rows: int, window: int) -> Target:
        return target_of(model, [5] * rows, 4, window)

    for recipe in ("scd:window=3", "tree:branch=2/1,layers=2"):
        found = check_samples(make, Layout(4), recipe, SamplingParams(0.9, top_p=0.95), samples=6_000)
        assert found.ok and found.tokens_per_call > 1, found
