"""Stopping criteria and logits processors of the caller's own, beside `custom_generate=mmspec.generate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tiny_models as tiny
import tiny_speech
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MaxTimeCriteria,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation import GenerationMixin

from mmspec.errors import ArgumentError
from mmspec.hf.call import call_generate
from mmspec.hf.generate import generate

pytestmark = pytest.mark.releases

IDS = torch.tensor([[0, 0, 1, 5, 6, 7], [1, 5, 8, 9, 10, 3]])
CALL: dict[str, Any] = {
    "input_ids": IDS, "attention_mask": (IDS != 0).long(), "max_new_tokens": 14, "pad_token_id": 0
}  # fmt: skip
RECIPES = ("plain", "scd:window=5", "recycle:window=4", "tree:branch=2/1,layers=1")


class SumIsDivisible(StoppingCriteria):
    """Ends a row when the sum of its ids is a multiple of `by`."""

    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return input_ids.sum(-1) % self.by == 0


class Fresh(LogitsProcessor):
    """Excludes the last three ids of the prefix."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.scatter(1, input_ids[:, -3:], -torch.inf)


class Best(LogitsProcessor):
    """Keeps the two largest logits; which those are depends on what is excluded before."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.masked_fill(scores < scores.topk(2).values[:, -1:], -torch.inf).flip(1).flip(1)


class Counting(LogitsProcessor):
    """Keeps state: every call raises another id."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        scores[:, self.calls % scores.shape[1]] += 5
        return scores


class FirstRow(LogitsProcessor):
    """Changes the first row of the batch only."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores[0, 3] += 5
        return scores


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_speech.flat()


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_row_ends_where_a_criterion_ends_it(model: Any, recipe: str) -> None:
    criteria = StoppingCriteriaList([SumIsDivisible(3)])
    ours = model.generate(
        **CALL, do_sample=True, seed=3, stopping_criteria=criteria, custom_generate=generate, recipe=recipe
    )
    whole = model.generate(**CALL, do_sample=True, seed=3, custom_generate=generate, recipe=recipe)
    lengths = []
    for row, full in zip(ours, whole, strict=True):
        sums = full.cumsum(0)[6:] % 3
        length = 7 + int((sums == 0).int().argmax()) if (sums == 0).any() else 20
        assert torch.equal(row[:length], full[:length]) and not row[length:].any()
        lengths.append(length)
    assert ours.shape[1] == max(lengths) < 20


@pytest.mark.parametrize("recipe", RECIPES)
def test_one_row_equals_the_models_own_generate(model: Any, recipe: str) -> None:
    one = CALL | {"input_ids": IDS[1:], "attention_mask": None, "do_sample": False, "repetition_penalty": 3.0}
    ended = 0
    for by in (2, 3, 5):
        call = one | {"stopping_criteria": [SumIsDivisible(by)]}
        expected = model.generate(**call)
        ended += expected.shape[1] < 20
        assert torch.equal(model.generate(**call, custom_generate=generate, recipe=recipe), expected)
    assert ended > 1


def test_stop_strings_and_time_end_a_row(model: Any) -> None:
    words = {"<pad>": 0, **{f"w{chr(96 + n)}": n for n in range(1, 21)}, "abcdef": 21}
    model_of_words = Tokenizer(WordLevel(words, unk_token="<pad>"))
    model_of_words.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model_of_words, unk_token="<pad>")
    call: dict[str, Any] = {"input_ids": IDS[1:], "max_new_tokens": 14, "do_sample": True}
    whole = model.generate(**call, seed=2, custom_generate=generate)[0]
    word = next(int(i) for i in whole[9:] if i)
    criterion = StopStringCriteria(tokenizer, ["w" + chr(96 + word)])
    ended = model.generate(**call, seed=2, stopping_criteria=[criterion], custom_generate=generate)[0]
    assert torch.equal(ended, whole[: len(ended)]) and ended[-1] == word and word not in ended[6:-1]
    timed = model.generate(**call, stopping_criteria=[MaxTimeCriteria(-1.0)], custom_generate=generate)
    assert timed.shape[1] == 7
    assert model.generate(**call, max_time=1e-9, custom_generate=generate).shape[1] == 7


def alternating(row: int, ids: Tensor) -> list[int]:
    return [1, 2, 3, 4] if len(ids) % 2 else [5, 6, 7, 8, 9]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("processor", [Fresh(), Best()])
@pytest.mark.parametrize("allowed", [None, alternating])
def test_processors_that_are_functions_of_the_prefix(
    model: Any, recipe: str, processor: LogitsProcessor, allowed: Callable[[int, Tensor], list[int]] | None
) -> None:
    call = CALL | {"logits_processor": LogitsProcessorList([processor]), "prefix_allowed_tokens_fn": allowed}
    expected = model.generate(**call, do_sample=False)
    assert torch.equal(model.generate(**call, do_sample=False, custom_generate=generate, recipe=recipe), expected)


def test_best_of_the_allowed_ids_is_sampled(model: Any) -> None:
    call = CALL | {"logits_processor": [Best()], "prefix_allowed_tokens_fn": alternating, "do_sample": True}
    seen = {
        tuple(row[6:8].tolist())
        for seed in range(20)
        for row in model.generate(**(call | {"max_new_tokens": 2}), seed=seed, custom_generate=generate)[:1]
    }
    assert len({first for first, _ in seen}) == 2 and {first for first, _ in seen} <= {5, 6, 7, 8, 9}


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (Counting(), "logits_processor Counting keeps state or is random"),
        (FirstRow(), "logits_processor FirstRow treats a row by its place in the batch"),
        (lambda ids, scores: scores[1:], "does not return logits of the shape that it is given"),
        (lambda ids, scores: scores[1][None], "cannot be called with the ids and logits of one row: index 1 is out"),
    ],
)
def test_other_processors_are_refused(model: Any, processor: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        model.generate(**CALL, logits_processor=[processor], custom_generate=generate)


def test_rows_that_allow_different_ids_are_refused_with_a_custom_processor(model: Any) -> None:
    with pytest.raises(ArgumentError, match="Best is not possible together with a prefix_allowed_tokens_fn"):
        model.generate(
            **CALL, logits_processor=[Best()], prefix_allowed_tokens_fn=lambda row, ids: [row + 1, 7],
            custom_generate=generate,
        )  # fmt: skip


def test_models_with_two_vocabularies_refuse_both() -> None:
    janus, ids = tiny.janus(), torch.tensor([[1, 12, 13, 3]])
    for given, message in (
        ({"stopping_criteria": [SumIsDivisible(3)]}, "stopping_criteria has SumIsDivisible, which is a function of"),
        ({"logits_processor": [Fresh()]}, "logits_processor depends on the prefix, and JanusForConditionalGeneration"),
    ):
        with pytest.raises(ArgumentError, match=message):
            GenerationMixin.generate(janus, ids, guidance_scale=1, max_new_tokens=16, **given, custom_generate=generate)


def test_an_assistant_model_is_a_draft_model(model: Any) -> None:
    small, call = tiny_speech.flat(layers=1), CALL | {"do_sample": True, "seed": 4}
    call |= {"input_ids": IDS[1:], "attention_mask": None, "return_dict_in_generate": True}
    ours = call_generate(model.generate, **call, assistant_model=small)
    named = call_generate(model.generate, **call, draft_model=small, recipe="draft")
    assert torch.equal(ours.sequences, named.sequences) and ours.stats.draft_calls == named.stats.draft_calls > 0
    window = call_generate(model.generate, **call, assistant_model=small, recipe="draft:window=3")
    assert window.stats.draft_calls > 0
    for given, message in (
        ({"recipe": "scd"}, "assistant_model was given, but recipe 'scd' does not draft with a draft model; use"),
        ({"draft_model": small}, "draft_model and assistant_model name the same thing; give one of them"),
        ({"num_assistant_tokens": 4}, "num_assistant_tokens=4 is not supported; use recipe='draft:window=5'"),
    ):
        with pytest.raises(ArgumentError, match=message):
            call_generate(model.generate, **call, assistant_model=small, **given)
