"""Parts of a long text that continue the part before them, in every family that clones from codes and their text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cloning_families import FAMILIES, Family
from part_runs import decode_rows
from torch import Tensor

from mmspec.audio.assembly import AudioAssembler
from mmspec.audio.text_parts import TextParts, part_seed
from mmspec.batching.call import CallEngine
from mmspec.batching.engine import Engine
from mmspec.decoding.step import UNWATCHED
from mmspec.recipes import parse

CASES = [(name, voiced) for name in FAMILIES for voiced in (False, True)]
FEW = [("csm", True), ("higgs-v3", False), ("flat", True)]  # of frames, of columns, of tokens
every_family = pytest.mark.parametrize("case", CASES, indirect=True, ids=str)
few_families = pytest.mark.parametrize("case", FEW, indirect=True, ids=str)


@dataclass
class Case:
    """A pipeline with its text."""

    family: Family
    pipe: Any
    voiced: bool

    def run(self, recipe: str, temperature: float | None = None) -> tuple[TextParts, Any]:
        """The parts of the text as they were decoded, and the output."""
        chosen, sampling = parse(recipe), self.pipe._sampling(temperature)
        parts = TextParts(self.pipe.adapter, self.pipe.read(self.text, None), sampling, self.family.seed, True)
        request = AudioAssembler(self.pipe.adapter).request(parts)
        (found,) = CallEngine(self.pipe, [request], chosen, 1, UNWATCHED).results()
        return parts, found

    @property
    def text(self) -> str:
        return self.family.text

    def frames(self, output: Any) -> list[Tensor]:
        """The frames int64 [F, K] of each part."""
        return [self.pipe.adapter.codes(tokens).T for tokens in output.tokens]


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    name, voiced = request.param
    family = FAMILIES[name]
    with family.short_parts():
        yield Case(family, family.load(tmp_path, voiced), voiced)


@every_family
def test_a_part_has_the_part_before_it_in_its_prompt(case: Case) -> None:
    """After the voice, or the first part if the model draws the voice. Each part is a request of its own with this."""
    parts, output = case.run("plain", case.family.temperature)
    adapter, codes, rows = case.pipe.adapter, case.frames(output), output.stats.rows
    spoken = [i for i, row in enumerate(rows) if len(codes[i]) and not row.truncated]
    assert len(codes) == 3 and spoken[:2] == [0, 1]
    own = case.family.frames(adapter, parts.prepared.parts[0]) if case.voiced else codes[0][:0]
    assert bool(len(own)) == case.voiced
    contexts = [own, codes[0]], [own, *codes[:2]] if adapter.draws_voice else [own, codes[1]]
    for prompt, context in zip(parts.prompts[1:], contexts, strict=True):
        assert torch.equal(case.family.frames(adapter, prompt.part), torch.cat(context))
    for i, (prompt, tokens) in enumerate(zip(parts.prompts, output.tokens, strict=True)):
        sampling, seed = case.pipe._sampling(case.family.temperature), part_seed(case.family.seed, i)
        alone = decode_rows(adapter, [prompt.part], parse("plain"), sampling, [seed])[0]
        assert torch.equal(alone[: len(tokens)], tokens)
    assert output.audio.shape[-1] == adapter.codec.hop * sum(map(len, codes))
    assert not [note for note in output.notes if "does not continue" in note]


@few_families
def test_audio_does_not_depend_on_how_it_is_asked_for(case: Case) -> None:
    """A call alone, in company, an engine and a stream; and other audio than without."""
    pipe, options = case.pipe, {"condition_on_previous_chunks": True}
    _, output = case.run(pipe.adapter.recipe)
    both = pipe([case.text, case.text[:3]], seed=case.family.seed, **options)[0]
    engine = Engine(pipe, max_rows=2)
    engine.add(case.text, request_id="text", seed=case.family.seed, **options)
    engine.add(case.text, seed=case.family.seed + 1)
    results = {each.request_id: each.result for each in _steps(engine) if each.finished}
    for other in (pipe(case.text, seed=case.family.seed, **options), both, results["text"]):
        assert all(map(torch.equal, other.tokens, output.tokens))
        np.testing.assert_allclose(other.audio, output.audio, atol=1e-5)
    stream = pipe.stream(case.text, seed=case.family.seed, first=2, every=3, **options)
    np.testing.assert_allclose(np.concatenate(list(stream), axis=-1), output.audio, atol=1e-5)
    without = pipe(case.text, seed=case.family.seed)
    assert torch.equal(without.tokens[0], output.tokens[0])
    assert not all(map(torch.equal, without.tokens, output.tokens))


def _steps(engine: Engine) -> Iterator[Any]:
    while engine.has_unfinished:
        yield from engine.step()


@few_families
def test_recipes_agree_on_every_part(case: Case) -> None:
    _, plain = case.run("plain", temperature=0)
    for recipe in ("scd:window=3", case.pipe.adapter.recipe):
        _, output = case.run(recipe, temperature=0)
        assert len(output.tokens) == len(plain.tokens) and all(map(torch.equal, output.tokens, plain.tokens))
