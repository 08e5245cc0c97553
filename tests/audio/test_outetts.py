"""OuteTTS 1.0 from its published folder, against prompts, tokens and probabilities of its package."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_codecs
import tiny_outetts
import torch
from part_runs import decode_rows, distance_of_probs

import mmspec
from mmspec.audio.codecs import codec_of
from mmspec.audio.models.flat.outetts import outetts_style, prompt_of, read_speaker, separator_of
from mmspec.audio.models.flat.speech import FlatAdapter
from mmspec.errors import ArgumentError, ModelError
from mmspec.recipes import parse
from mmspec.sampling.logits_processors import RepetitionPenalty
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "outetts.json").read_text())
LENGTH = len(GOLDEN["greedy"][0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_outetts.outetts(tmp_path_factory.mktemp("outetts"))


def codec() -> Any:
    return codec_of(tiny_codecs.mimi(codebooks=2, codebook_size=1024))


@pytest.fixture
def pipe(folder: Path, tmp_path: Path) -> Any:
    (tmp_path / "speaker.json").write_text(json.dumps(tiny_outetts.SPEAKER))
    options = {"style": "outetts", "codec": codec(), "speaker": str(tmp_path / "speaker.json")}
    made = mmspec.load(str(folder), config=options)
    object.__setattr__(made.adapter.style, "tokens", LENGTH)
    return made


def parts(pipe: Any) -> list[Any]:
    """The texts as parts, with the speaker where the package had one."""
    plain = pipe.adapter.style.prompt
    found = []
    for text, spoken in GOLDEN["texts"]:
        (part,) = pipe.read(text, None).parts
        ids = plain(pipe.adapter.tokenizer, text, None) if spoken else None
        if ids is None:
            ids = pipe.adapter.tokenizer.encode(prompt_of(text, None), add_special_tokens=False)
        found.append(replace(part, ids=ids))
    return found


def test_prompts_are_the_packages(pipe: Any) -> None:
    assert [part.ids for part in parts(pipe)] == GOLDEN["prompts"]
    assert pipe.read("One\u2014two", None).parts[0].ids == GOLDEN["prompts"][1]
    assert [separator_of(text) for text in ("a", "a!", "", "\u4e00", "\u4e00\u3002")] == [". ", " ", "", "\u3002", ""]


@pytest.mark.releases
@pytest.mark.parametrize("recipe", ["plain", "recycle:window=4", "scd:window=5", "tree:branch=2/1,layers=1"])
def test_greedy_tokens_and_frames_are_the_packages(pipe: Any, recipe: str) -> None:
    """Prompts of three lengths in a batch; the code after the last one is read as the last."""
    greedy = SamplingParams(0.0)
    found = decode_rows(pipe.adapter, parts(pipe), parse(recipe), greedy, [0, 1, 2])
    assert found.tolist() == GOLDEN["greedy"]
    for row, frames in zip(found, GOLDEN["frames"], strict=True):
        assert pipe.adapter.codes(row).tolist() == [[min(code, 1023) for code in book] for book in frames]


def test_probabilities_are_the_packages(pipe: Any) -> None:
    """After the penalty of the latest 64 tokens, temperature, top-k, top-p and min-p, and twins without some of it."""
    own = pipe.adapter.sampling
    assert pipe._sampling(0.5, None, None, None) == replace(own, temperature=0.5) and own.min_p == 0.05

    def distance(sampling: SamplingParams = own) -> float:
        recorded = zip(parts(pipe), GOLDEN["greedy"], GOLDEN["probs"], strict=True)
        return max(distance_of_probs(pipe.adapter, part, sampling, *row) for part, *row in recorded)

    assert distance() < 1e-5
    assert distance(replace(own, min_p=0.0)) > 1e-2
    style = pipe.adapter.style
    for processors in ((), (RepetitionPenalty(1.1, last=1),)):
        object.__setattr__(style, "processors", processors)
        assert distance() > 1e-2


def test_samples_follow_truncation_at_drafted_positions(pipe: Any) -> None:
    """Pearson's chi-square of both tokens, the second drafted, with the distribution that the job states.

    A right pipeline fails less than once in a million tests; the twin without min-p draws what cannot be drawn.
    """
    rows, part, adapter = 1200, parts(pipe)[1], pipe.adapter
    sampling, recipe = SamplingParams(0.6, 40, 0.98, min_p=0.05), parse("scd:window=2")
    object.__setattr__(adapter.style, "tokens", 2)

    def sampled(params: SamplingParams) -> Any:
        return decode_rows(adapter, [part] * rows, recipe, params, range(rows))

    one = adapter.prepare_rows([part], parse("plain"), [sampling])
    with torch.inference_mode():
        sampler = one.layout.sampler([sampling], one.target.device)
        first = sampler(one.target.prefill(), Numbers(np.zeros((1, 1), dtype=np.int64)))[0, 0]
        likely = int(first.argmax())
        second = sampler(one.target.forward(torch.tensor([[likely]]), np.zeros(1, np.int64)), Numbers(np.array([[1]])))[
            0, 0
        ]
    tokens = sampled(sampling)
    for p, found in ((first, tokens[:, 0]), (second, tokens[tokens[:, 0] == likely, 1])):
        expected, counted = p * len(found), torch.bincount(found, minlength=len(p))
        cells = expected > 5
        statistic, count = float(((counted - expected) ** 2 / expected)[cells].sum()), int(cells.sum())
        assert len(found) > 100 and not bool(counted[p == 0].any())
        assert statistic < count + 7 * (2 * count) ** 0.5 + 20, (statistic, count)
    assert bool((first[sampled(replace(sampling, min_p=0.0))[:, 0]] == 0).any())


def test_errors(folder: Path) -> None:
    with pytest.raises(ArgumentError, match="speaker='x.json' is not allowed; it is for the style 'outetts'"):
        mmspec.load(str(folder), config={"style": "llasa", "codec": codec(), "speaker": "x.json"})
    words = tiny_outetts.SPEAKER["words"]
    for wrong, said in (
        ({"text": "a", "words": []}, "must have a 'text' and 'words'"),
        ({"text": "a", "words": [{"word": "a"}]}, "it needs 'word', 'c1', 'c2' and 'features'"),
        ({"text": "a", "words": [{**words[0], "c1": [1024, 1]}]}, "other codes than pairs of 0 to 1023"),
        ({"text": "a", "words": [{**words[0], "duration": "x"}]}, "duration of 'The'='x' is not allowed"),
        ({"text": "a", "words": [{**words[0], "duration": float("nan")}]}, "duration of 'The'=nan is not allowed"),
        ({"text": "a", "words": [{**words[0], "features": {"pitch": "high"}}]}, "pitch of 'The'='high' is not allowed"),
    ):
        with pytest.raises(ArgumentError, match=said):
            read_speaker(wrong)
    model = tiny_outetts.model()
    with pytest.raises(ModelError, match="does not number the codes 'c1'"):
        outetts_style(model.config, type("T", (), {"unk_token_id": 0, "convert_tokens_to_ids": lambda *_: 0})())
    with pytest.raises(ModelError, match="the model's stream 2 slots of 1024"):
        FlatAdapter(model, tiny_outetts.tokenizer(), codec_of(tiny_codecs.mimi(3, 1024)), "outetts")
