"""Parts of a long text that continue the part before them, in every model that clones from codes and their text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from cloning_models import CLONING, CloningModel
from part_runs import decode_rows
from served import served
from tiny_chatterbox import Levels
from torch import Tensor

import mmspec
from mmspec.audio.adapter import PreparedText
from mmspec.audio.assembly import AudioAssembler
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.audio.text_parts import TextParts, part_seed
from mmspec.batching.call import CallEngine
from mmspec.batching.engine import Engine
from mmspec.bulk.calls import generate_accepted
from mmspec.bulk.requests import SampleSettings, requests_of
from mmspec.cli.app import main
from mmspec.decoding.step import UNWATCHED
from mmspec.errors import ArgumentError
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.serving.engines import new_engine
from mmspec.serving.models import ServedModel

CASES = [(name, voiced) for name in CLONING for voiced in (False, True)]
FEW = [("csm", True), ("higgs-v3", False), ("flat", True)]  # of frames, of columns, of tokens
every_model = pytest.mark.parametrize("case", CASES, indirect=True, ids=str)
few_models = pytest.mark.parametrize("case", FEW, indirect=True, ids=str)


@dataclass
class Case:
    """A pipeline with its text."""

    model: CloningModel
    pipe: Any
    voiced: bool

    def run(self, recipe: str, temperature: float | None = None) -> tuple[TextParts, Any]:
        """The parts of the text as they were decoded, and the output."""
        chosen, sampling = parse(recipe), self.pipe._sampling(temperature)
        parts = TextParts(self.pipe.adapter, self.pipe.read(self.text, None), sampling, self.model.seed, True)
        request = AudioAssembler(self.pipe.adapter).request(parts)
        (found,) = CallEngine(self.pipe, [request], chosen, 1, UNWATCHED).results()
        return parts, found

    @property
    def text(self) -> str:
        return self.model.text

    def frames(self, output: Any) -> list[Tensor]:
        """The frames int64 [F, K] of each part."""
        return [self.pipe.adapter.codes(tokens).T for tokens in output.tokens]


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    name, voiced = request.param
    model = CLONING[name]
    with model.short_parts():
        yield Case(model, model.load(tmp_path, voiced), voiced)


@every_model
def test_a_part_has_the_part_before_it_in_its_prompt(case: Case) -> None:
    """After the voice, or the first part if the model draws the voice. Each part is a request of its own with this."""
    parts, output = case.run("plain", case.model.temperature)
    adapter, codes, rows = case.pipe.adapter, case.frames(output), output.stats.rows
    spoken = [i for i, row in enumerate(rows) if len(codes[i]) and not row.truncated]
    assert len(codes) == 3 and spoken[:2] == [0, 1]
    own = case.model.frames(adapter, parts.prepared.parts[0]) if case.voiced else codes[0][:0]
    assert bool(len(own)) == case.voiced
    contexts = [own, codes[0]], [own, *codes[:2]] if adapter.draws_voice else [own, codes[1]]
    for prompt, context in zip(parts.prompts[1:], contexts, strict=True):
        assert torch.equal(case.model.frames(adapter, prompt.part), torch.cat(context))
    for i, (prompt, tokens) in enumerate(zip(parts.prompts, output.tokens, strict=True)):
        sampling, seed = case.pipe._sampling(case.model.temperature), part_seed(case.model.seed, i)
        alone = decode_rows(adapter, [prompt.part], parse("plain"), sampling, [seed])[0]
        assert torch.equal(alone[: len(tokens)], tokens)
    assert output.audio.shape[-1] == adapter.codec.hop * sum(map(len, codes))
    assert not [note for note in output.notes if "does not continue" in note]


@few_models
def test_audio_does_not_depend_on_how_it_is_asked_for(case: Case) -> None:
    """A call alone, in company, an engine and a stream; and other audio than without."""
    pipe: Any = case.pipe
    options: dict[str, Any] = {"condition_on_previous_chunks": True}
    _, output = case.run(pipe.adapter.recipe)
    both = pipe([case.text, case.text[:3]], seed=case.model.seed, **options)[0]
    engine = Engine(pipe, max_rows=2)
    engine.add(case.text, request_id="text", seed=case.model.seed, **options)
    engine.add(case.text, seed=case.model.seed + 1)
    results = {each.request_id: each.result for each in _steps(engine) if each.finished}
    for other in (pipe(case.text, seed=case.model.seed, **options), both, results["text"]):
        assert all(map(torch.equal, other.tokens, output.tokens))
        np.testing.assert_allclose(other.audio, output.audio, atol=1e-5)
    stream = pipe.stream(case.text, seed=case.model.seed, first=2, every=3, **options)
    np.testing.assert_allclose(np.concatenate(list(stream), axis=-1), output.audio, atol=1e-5)
    without = pipe(case.text, seed=case.model.seed)
    assert torch.equal(without.tokens[0], output.tokens[0])
    assert not all(map(torch.equal, without.tokens, output.tokens))


def _steps(engine: Engine) -> Iterator[Any]:
    while engine.has_unfinished:
        yield from engine.step()


@few_models
def test_recipes_agree_on_every_part(case: Case) -> None:
    _, plain = case.run("plain", temperature=0)
    for recipe in ("scd:window=3", case.pipe.adapter.recipe):
        _, output = case.run(recipe, temperature=0)
        assert len(output.tokens) == len(plain.tokens) and all(map(torch.equal, output.tokens, plain.tokens))


class Cloner:
    """An adapter whose parts are their texts, and what they continue. Its model has positions for `room` codes."""

    codec, continues_parts = Levels(16), True
    sampling, recipe, guided, voices = SamplingParams(), "plain", False, ()

    def read(self, text: str, voice: str | None) -> Any: ...

    def prepare_rows(self, parts: Any, recipe: Any, samplings: Any) -> Any: ...

    def __init__(self, draws_voice: bool, room: int) -> None:
        self.draws_voice, self.room = draws_voice, room

    def codes(self, tokens: Tensor) -> Tensor:
        return tokens[None]

    def continue_from(self, part: str, context: Sequence[ReferenceCodes]) -> Any:
        fits = sum(len(each.codes) for each in context) <= self.room
        return (part, "".join(each.transcript for each in context)) if fits else None


# Frames of each part, negative for parts that were cut; and what the parts after the first then continue.
CONTEXTS: list[tuple[bool, int, list[int], list[str]]] = [
    (True, 99, [2, 2, 2, 2], ["a", "ab", "ac"]),
    (False, 99, [2, 2, 2, 2], ["a", "b", "c"]),
    (True, 99, [2, 0, 2, 2], ["a", "a", "ac"]),
    (True, 99, [2, -2, 2, 2], ["a", "a", "ac"]),
    (True, 99, [-2, -2, 2, 2], ["a", "b", "c"]),
    (True, 99, [0, 0, 2, 2], ["", "", "c"]),
    (False, 99, [-2, 2, 2, 2], ["", "b", "c"]),
    (True, 3, [2, 2, 2, 2], ["a", "b", "c"]),
    (True, 3, [2, 4, 2, 2], ["a", "a!", "c"]),
    (False, 3, [2, 4, 2, 2], ["a", "!", "c"]),
]


@pytest.mark.parametrize(("draws_voice", "room", "lengths", "wanted"), CONTEXTS)
def test_what_a_part_continues(draws_voice: bool, room: int, lengths: list[int], wanted: list[str]) -> None:
    """Of parts before it with audio that were not cut, the latest; what does not fit is said, which is marked here."""
    adapter: Any = Cloner(draws_voice, room)
    parts = TextParts(adapter, PreparedText("abcd", texts="abcd"), SamplingParams(), 7, True)
    request, found = parts.request(lambda *_: None), list[str]()
    assert request.chained and request.continued is not None
    earlier = request.rows[0]
    for number, length in enumerate(lengths[:-1]):
        said, codes = len(parts.notes), torch.arange(abs(length))
        earlier = request.continued(request.rows[number + 1], earlier, codes, length < 0)
        assert earlier.seed == part_seed(7, number + 1) and earlier.prompt is parts.prompts[number + 1]
        part, before = earlier.prompt.part, earlier.prompt.before
        found.append((part[1] if isinstance(part, tuple) else "") + "!" * (len(parts.notes) - said))
        assert part[0] == "bcd"[number] and bool(length) == (before is not None)
        assert before is None or torch.equal(before, codes[None])
    assert found == wanted


def test_audio_goes_on_where_the_part_before_it_ends(tmp_path: Path) -> None:
    """Each part is decoded after the last seconds of the part before it, whose audio is not repeated."""
    pipe, model = CLONING["csm"].load(tmp_path, False), CLONING["csm"]
    with model.short_parts():
        prepared = pipe.read(model.text, None)
    parts, codec = TextParts(pipe.adapter, prepared, pipe.adapter.sampling, 0, True), pipe.adapter.codec
    request = AudioAssembler(pipe.adapter).request(parts)
    tokens = [torch.randint(1, 4, (n, 2), generator=torch.Generator().manual_seed(n)) for n in (9, 300, 5)]
    row, frames = request.rows[0], [pipe.adapter.codes(each) for each in tokens]
    for number in (1, 2):
        row = request.continued(request.rows[number], row, tokens[number - 1], False)  # type: ignore[misc]
    stats = pipe(model.text[:3], seed=0).stats
    audio = request.finish(tokens, replace(stats, rows=stats.rows * 3)).audio
    kept = -(-4 * codec.sampling_rate // codec.hop)
    assert kept < 300 and audio.shape[-1] == codec.hop * sum(map(len, tokens))
    for number, before in ((1, frames[0]), (2, frames[1][:, -kept:])):
        first = codec.hop * sum(map(len, tokens[:number]))
        both = codec.decode(torch.cat([before, frames[number]], dim=-1)[None])[0, :, before.shape[1] * codec.hop :]
        np.testing.assert_allclose(audio[:, first : first + both.shape[-1]], both.numpy(), atol=1e-5)
        fresh = codec.decode(frames[number][None])[0]
        assert not np.allclose(both[:, : codec.hop].numpy(), fresh[:, : codec.hop].numpy(), atol=1e-3)


def test_what_is_not_possible() -> None:
    pipe, row = mmspec.load("spoken"), {"prompt": "one", "condition_on_previous_chunks": True}
    with pytest.raises(ArgumentError, match="condition_on_previous_chunks=True is not possible: this model does"):
        generate_accepted(pipe, requests_of([row], SampleSettings()))
    for call in (pipe, pipe.stream, Engine(pipe).add):
        with pytest.raises(ArgumentError, match="condition_on_previous_chunks=True is not possible: this model does"):
            call("one", condition_on_previous_chunks=True)
        with pytest.raises(ArgumentError, match="condition_on_previous_chunks=1 is not allowed; it must be True or"):
            call("one", condition_on_previous_chunks=1)


def test_the_server_and_the_command_give_the_same_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = CLONING["qwen3-tts"]
    with model.short_parts():
        pipe = model.load(tmp_path, False)
        own = pipe(model.text, seed=5, recipe="plain", condition_on_previous_chunks=True)
        body = {"input": model.text, "seed": 5, "response_format": "pcm", "condition_on_previous_chunks": True}
        models = [ServedModel("voice", pipe, "plain", new_engine(pipe, "plain", 4, 8))]
        spoken = mmspec.load("spoken")
        models.append(ServedModel("spoken", spoken, "plain", new_engine(spoken, "plain", 4, 8)))
        with served(models) as running:
            for stream in (False, True):
                status, _, data = running.request("/v1/audio/speech", {**body, "model": "voice", "stream": stream})
                assert status == 200, data
                found = np.frombuffer(data, "<i2") / 32768
                np.testing.assert_allclose(found, own.audio[0].clip(-1, 1), atol=1e-3)
                status, _, data = running.request("/v1/audio/speech", {**body, "model": "spoken", "stream": stream})
                assert status == 400 and json.loads(data)["error"]["param"] == "condition_on_previous_chunks"
        file = tmp_path / "x.wav"
        words = ["speak", model.text, "--condition-on-previous-chunks", "--seed", "5", "--recipe", "plain"]
        assert main([*words, "-m", str(tmp_path / "voice_design"), "--config", "frames=30", "-o", str(file)]) == 0
    np.testing.assert_allclose(soundfile.read(file)[0], own.audio[0].clip(-1, 1), atol=1e-3)
    assert main([*words, "-o", str(file)]) == 2
    assert "this model does not clone from codes and their text" in capsys.readouterr().err
