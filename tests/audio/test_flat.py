"""Flat speech models through `mmspec.generate`: structure, penalties, guidance, drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import tiny_speech as tiny
import torch
from batch_runs import run
from torch import Tensor
from transformers import LogitsProcessor

import mmspec
from mmspec.audio.models.flat.decoding import STREAM_FORMATS, StreamFormat
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.errors import ArgumentError, ModelError
from mmspec.hf.generate import GenerateJob, prepare
from mmspec.methods.outer.drafter import OuterLayers
from mmspec.methods.outer.head import OuterHead
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import dense
from mmspec.sampling.rejection import Verdict
from mmspec.testing.adapters import check_samples, check_windows, joint_probs
from mmspec.testing.exactness import compare_with_joint

PROMPTS = torch.tensor([[0, 3, 4, 5], [6, 7, 12, 19]])
RECIPES = [
    "scd:window=4,start=up", "recycle:window=4", "draft:window=4", "layer-skip:layers=1,window=3",
    "tree:branch=2/1,layers=1",
]  # fmt: skip
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "penalty": {"repetition_penalty": 1.6},
    "slots": {
        "prefix_allowed_tokens_fn": tiny.STREAM.allowed_tokens_fn(4),
        "eos_token_id": 10,
        "repetition_penalty": 1.3,
    },
    "guided": {
        "prefix_allowed_tokens_fn": tiny.STREAM.allowed_tokens_fn(4),
        "guidance_scale": 2.5,
        "negative_prompt_ids": torch.tensor([[1, 2], [1, 2]]),
        "repetition_penalty": 1.5,
    },
    "processors": {"no_repeat_ngram_size": 2, "min_new_tokens": 7, "eos_token_id": 10, "suppress_tokens": [14, 2]},
}


def call(model: Any, name: str, **more: Any) -> Tensor:
    return model.generate(
        PROMPTS, attention_mask=(PROMPTS > 0).long(), max_new_tokens=12, do_sample=False, **CALLS[name], **more
    )


def job_of(model: Any, prompts: Tensor, length: int, **arguments: Any) -> GenerateJob:
    def capture(
        model: Any, input_ids: Tensor, logits_processor: Any, stopping_criteria: Any, generation_config: Any, **i: Any
    ) -> Any:
        return prepare(model, input_ids, logits_processor, stopping_criteria, generation_config, i)

    found: Any = model.generate(
        prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=length, custom_generate=capture, **arguments
    )
    return found


@pytest.mark.releases
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("qwen", [False, True])
def test_greedy_matches_the_models_own_generate(name: str, qwen: bool) -> None:
    model = tiny.flat(qwen=qwen)
    own = call(model, name)
    draft = tiny.flat(seed=5, layers=1, qwen=qwen)
    for recipe in RECIPES if not qwen else RECIPES[:1]:
        more = {"draft_model": draft} if recipe.startswith("draft") else {}
        assert torch.equal(call(model, name, custom_generate=mmspec.generate, recipe=recipe, **more), own)


def test_a_perfect_draft_is_fully_accepted() -> None:
    """The target drafts for itself: 16 tokens are one of the prefill and three windows of 5, with any processors."""
    model = tiny.flat()
    for name in ("plain", "penalty"):
        arguments = {**CALLS[name], "do_sample": True, "top_p": 0.9, "return_dict_in_generate": True}
        out = model.generate(
            PROMPTS[1:], max_new_tokens=16, custom_generate=mmspec.generate, recipe="draft:window=5", seed=1,
            draft_model=model, **arguments,
        )  # fmt: skip
        assert out.stats.target_calls == 1 + 3
    bad = model.generate(
        PROMPTS[1:], max_new_tokens=16, custom_generate=mmspec.generate, recipe="draft:window=5", seed=1,
        draft_model=tiny.flat(seed=3), do_sample=True, return_dict_in_generate=True,
    )  # fmt: skip
    assert 1 + 3 < bad.stats.target_calls <= 16


@pytest.mark.parametrize("window", [3, 5, 8])
def test_target_calls_of_a_draft_of_known_quality(window: int) -> None:
    model = tiny.flat()
    job = job_of(model, PROMPTS[1:].expand(2, -1).contiguous(), 33, do_sample=False, repetition_penalty=1.5)
    sampling = [job.sampling] * 2
    resources = replace(
        job.resources(model, window),
        draft_model=lambda: tiny.Corrupted(job.target(job.plan, window)),
        draft_sampling=sampling,
    )
    made = run(job.target(job.plan, window), parse(f"draft:window={window}"), job.layout, sampling, [0, 1], resources)
    own = run(job.target(job.plan, 1), parse("plain"), job.layout, sampling, [0, 1])
    assert torch.equal(made.tokens, own.tokens)
    assert made.stats.target_calls == tiny.calls_with_corrupted(33, window) < own.stats.target_calls == 33


GUIDED = {"guidance_scale": 1.7, "repetition_penalty": 1.5}


def guided_job(model: Any, batch_size: int, length: int, prompt: Tensor = PROMPTS[1:]) -> GenerateJob:
    negative = {"negative_prompt_ids": torch.tensor([[1, 2]]).expand(batch_size, -1)}
    return job_of(model, prompt.expand(batch_size, -1).contiguous(), length, do_sample=True, **{**GUIDED, **negative})


@pytest.mark.releases
def test_windows_match_single_tokens() -> None:
    model = tiny.flat()

    def make(batch_size: int, window: int) -> Any:
        job = guided_job(model, batch_size, 12)
        return job.target(job.plan, window)

    assert check_windows(make, 12) < 1e-4


def test_samples_follow_the_target_distribution() -> None:
    """With guidance and a penalty, drafted by a model with its own penalty and without guidance."""
    model, draft, rows, layout = tiny.flat(vocab_size=3), tiny.flat(seed=1, vocab_size=3, layers=1), 6000, Layout(4)

    def job(batch_size: int) -> GenerateJob:
        return guided_job(model, batch_size, 4, torch.tensor([[2, 1, 0, 2]]))

    def make(batch_size: int, window: int) -> Any:
        made = job(batch_size)
        return made.target(made.plan, window)

    sampling, recipe = SamplingParams(0.9, top_p=0.95), parse("draft:window=3")
    for own in ("scd:window=3,start=left", "layer-skip:layers=1,window=3", "tree:branch=2/1,layers=1,guidance=1.7"):
        found = check_samples(make, layout, own, sampling, samples=rows)
        assert found.ok and found.tokens_per_call > 1, found
    made = job(rows)
    resources = replace(made.resources(draft, 3), draft_sampling=[sampling] * rows)
    tokens = run(made.target(made.plan, 3), recipe, layout, [sampling] * rows, range(rows), resources).tokens
    counted = torch.bincount((tokens * 3 ** torch.arange(3, -1, -1)).sum(1), minlength=81)
    assert float((counted / rows - joint_probs(make, layout, sampling)).abs().sum() / 2) < found.limit


@pytest.mark.parametrize("broken", [False, True])
def test_samples_refreshed_by_the_outer_layers_follow_it_too(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an outer head; in the broken twin drafts are tested against the q of before."""
    model, layout, sampling = tiny.flat(vocab_size=3, layers=4, spread=0.5), Layout(4), SamplingParams(0.9)
    recipe = parse("scd:window=4,start=left,refresh=outer,passes=2")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        head = OuterHead(3, 32, 24, 2)
        for p in head.parameters():
            torch.nn.init.normal_(p, std=0.5)
    if broken:
        couple = OuterLayers.couple

        def with_old_q(self: OuterLayers, verdict: Verdict, *rest: Any) -> tuple[Tensor, Tensor]:
            return couple(self, verdict, *rest)[0], dense(verdict.p)

        monkeypatch.setattr(OuterLayers, "couple", with_old_q)

    def make(batch_size: int, window: int) -> Any:
        job = guided_job(model, batch_size, 4, torch.tensor([[2, 1, 0, 2]]))
        return job.target(job.plan, window)

    def decode(seeds: Sequence[int]) -> Any:
        target, resources = make(len(seeds), recipe.window), DraftResources(heads={"outer": head})
        return run(target, recipe, layout, [sampling] * len(seeds), seeds, resources)

    place = 3 ** torch.arange(3, -1, -1)
    joint = joint_probs(make, layout, sampling)
    found = compare_with_joint(joint, decode, lambda tokens: (tokens * place).sum(1), range(10000), 5000)
    assert found.ok != broken and found.tokens_per_call > 1, found


def test_stream_formats() -> None:
    orpheus = STREAM_FORMATS["orpheus"]
    assert orpheus.codebooks == (1, 2, 4)
    generator = torch.Generator().manual_seed(0)
    books = [torch.randint(4096, (3 * n,), generator=generator) for n in orpheus.codebooks]
    ids = orpheus.to_ids(books)
    assert ids[0] == 128266 + books[0][0] and ids[4] == 128266 + 4 * 4096 + books[1][1]
    assert int(ids[6]) == 128266 + 6 * 4096 + int(books[2][3])
    for after in ([], [128258, 5, 5], [128266 + 4]):
        back = orpheus.to_codes(torch.cat([ids, torch.tensor(after, dtype=torch.int64)]))
        assert all(torch.equal(a, b) for a, b in zip(back, books, strict=True))
    assert STREAM_FORMATS["llasa"].to_codes(torch.tensor([128264, 193799, 128261]))[0].tolist() == [0, 65535]
    with pytest.raises(ModelError, match="ids contains an id that its slot does not allow"):
        orpheus.to_codes(ids.flip(0))
    with pytest.raises(ArgumentError, match="without a gap"):
        StreamFormat(codes=4, first=0, end=None, slots=(0, 2))
    allowed = tiny.STREAM.allowed_tokens_fn(4)
    assert allowed(0, torch.zeros(4)) == [11, 12, 13, 14, 15, 10]
    assert allowed(0, torch.zeros(7)) == [16, 17, 18, 19, 20]


class StatefulProcessor(LogitsProcessor):
    """A processor whose scores depend on its earlier calls."""

    calls = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        return scores + self.calls


def test_errors() -> None:
    with pytest.raises(ArgumentError, match="logits_processor StatefulProcessor keeps state or is random"):
        call(tiny.flat(), "plain", custom_generate=mmspec.generate, logits_processor=[StatefulProcessor()])
    with pytest.raises(ArgumentError, match="recipe 'draft' needs a draft model"):
        call(tiny.flat(), "plain", custom_generate=mmspec.generate, recipe="draft")


@pytest.mark.releases
@pytest.mark.parametrize("name", ["Gemma", "Gemma3", "GPT2", "Phi", "Phi3", "Lfm2"])
def test_other_backbones_match_their_own_generate(name: str) -> None:
    """Prompts of two lengths, with a penalty; a window of attention that is too short is refused."""
    model = tiny.other_backbone(name)
    own = call(model, "penalty")
    for recipe in ("scd:window=4", "tree:branch=2/1,layers=1"):
        assert torch.equal(call(model, "penalty", custom_generate=mmspec.generate, recipe=recipe), own)
    if name in ("Gemma3", "Phi3"):
        model.config.sliding_window = 8
        with pytest.raises(ArgumentError, match="latest 8 positions in some layers"):
            call(model, "plain", custom_generate=mmspec.generate)
