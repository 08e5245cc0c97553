"""`mmspec.accelerate` on CosyVoice 2 and 3, by a stand-in for their source, which no package has."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from stand_in_cosyvoice import CosyVoice2, Qwen2LM, earlier_ras_sampling
from torch import Tensor
from two_samples import check_accelerated_samples

import mmspec

pytestmark = pytest.mark.releases

GREEDY: dict[str, Any] = {"top_k": 1, "tau_r": 2.0}  # no code is repetitive
VERSIONS = pytest.mark.parametrize("third", [False, True], ids=["2", "3"])


def notes(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@VERSIONS
def test_greedy_equals_the_untouched_object(third: bool, caplog: pytest.LogCaptureFixture) -> None:
    voice = CosyVoice2(Qwen2LM(third=third, **GREEDY))
    own = voice.inference_zero_shot("one two")
    for recipe in ("scd:window=4", "recycle:window=3"):
        assert mmspec.accelerate(voice, recipe) is voice
        assert voice.inference_zero_shot("one two") == own and len(own) > 8, notes(caplog)
        stats = mmspec.last_stats(voice)
        assert stats is not None and stats.tokens > stats.target_calls
    mmspec.accelerate(voice, enabled=False)
    assert "inference_wrapper" not in vars(voice.model.llm) and not notes(caplog)


def test_codes_come_while_others_are_decoded() -> None:
    lm: Any = mmspec.accelerate(Qwen2LM(), "scd:window=4")
    reads: list[int] = []
    lm.llm["model"].model.register_forward_hook(lambda *_: reads.append(1))
    torch.manual_seed(0)
    codes = lm.inference("one two")
    next(codes)
    first = len(reads)
    assert len(list(codes)) > 8 and len(reads) > first + 2 and not torch.is_inference_mode_enabled()


def test_a_seed_of_torch_gives_the_same_samples_twice_and_copies_are_accelerated() -> None:
    lm: Any = mmspec.accelerate(Qwen2LM(), "scd:window=4")

    def speak(lm: Any, seed: int) -> list[int]:
        torch.manual_seed(seed)
        return list(lm.inference("one two"))

    other = copy.deepcopy(lm)
    assert speak(lm, 0) == speak(lm, 0) == speak(other, 0) != speak(lm, 1)
    assert other.inference_wrapper.owner is other and mmspec.last_stats(other) is not None


@pytest.mark.slow
@VERSIONS
def test_samples_follow_the_distribution_of_the_untouched_object(third: bool) -> None:
    lm = Qwen2LM(3, third, win_size=2)

    def sample() -> int:
        return int(sum((code + 1) * 5**place for place, code in enumerate(lm.inference("one", 3))))

    check_accelerated_samples(lm, sample, 300, 6)


def with_vllm() -> Qwen2LM:
    lm: Any = Qwen2LM()
    lm.vllm = None
    return lm


def with_previous() -> Qwen2LM:
    lm: Any = Qwen2LM()
    lm.inference_wrapper = lm.inference_wrapper
    return lm


def drawn_again(lm: Any, scores: Tensor, before: list[int], sampling: int, ignore_eos: bool = True) -> int:
    """As before February 2026: the end is not forbidden but drawn again."""
    for _ in range(100):
        code = int(lm.sampling(scores, before, sampling))
        if not ignore_eos or code < lm.speech_token_size:
            return code
    raise RuntimeError("sampling reaches max_trials")


class Earlier(Qwen2LM):
    sampling_ids: Any = drawn_again


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (with_vllm, "vLLM decodes"),
        (with_previous, "another package has set inference_wrapper"),
        (lambda: Qwen2LM(sampler=first_code), "its sampler is not ras_sampling"),
        (partial(Qwen2LM, sampler=earlier_ras_sampling), "samples in another way than CosyVoice since February 2026"),
        (Earlier, "samples in another way than CosyVoice since February 2026"),
    ],
    ids=["vllm", "another package", "sampler", "earlier repetitions", "earlier ends"],
)
def test_what_runs_as_before(make: Callable[[], Any], reason: str, caplog: pytest.LogCaptureFixture) -> None:
    lm = make()
    torch.manual_seed(0)
    own = list(lm.inference("one two"))
    mmspec.accelerate(lm)
    for _ in range(2):
        torch.manual_seed(0)
        assert list(lm.inference("one two")) == own and mmspec.last_stats(lm) is None
    (note,) = notes(caplog)  # once
    assert "Qwen2LM" in note or "Earlier" in note
    assert reason in note


def first_code(scores: Tensor, before: list[int], sampling: int) -> int:
    return 0


def test_no_codes_at_all() -> None:
    lm = mmspec.accelerate(Qwen2LM())
    codes: Iterator[int] = lm.inference_wrapper(torch.ones(1, 2, 16), 25, 0, 0, "")
    assert list(codes) == []
