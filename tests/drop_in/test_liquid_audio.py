"""`mmspec.accelerate` on the model of liquid-audio, by a stand-in; its package needs Python 3.12."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from stand_in_liquid_audio import LFM2AudioModel
from torch import Tensor
from two_samples import check_accelerated_samples

import mmspec
from mmspec.decoding.adaptive_window import AdaptiveWindow

pytestmark = pytest.mark.releases

METHODS = "generate_sequential", "generate_interleaved"


def call(model: Any, method: str = METHODS[0], **more: Any) -> list[Any]:
    text = torch.linspace(-1, 1, 16)[None]
    return [token.tolist() for token in getattr(model, method)(text=text, **{"max_new_tokens": 8, **more})]


def notes(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("method", METHODS)
def test_greedy_equals_the_untouched_object(method: str, caplog: pytest.LogCaptureFixture) -> None:
    model = LFM2AudioModel()
    own = call(model, method)
    for recipe in ("plain", "scd:window=4", "sjd:window=3,start=up", "recycle:window=3", "scd:window=auto", None):
        assert mmspec.accelerate(model, recipe) is model
        for how in ({}, {"audio_temperature": 0.8, "audio_top_k": 1}):
            assert call(model, method, **how) == own
        stats = mmspec.last_stats(model)
        assert stats is not None and stats.tokens == 7 * 6
        # The clock decides whether `window=auto` drafts.
        assert recipe == "scd:window=auto" or (stats.tokens > stats.target_calls) == (recipe != "plain")
    mmspec.accelerate(model, enabled=False)
    assert not {*METHODS} & {*vars(model)} and not notes(caplog)


def test_frames_come_while_others_are_decoded() -> None:
    model: Any = mmspec.accelerate(LFM2AudioModel(), "scd:window=4")
    reads: list[int] = []
    model.lfm.register_forward_hook(lambda *_: reads.append(1))
    frames = model.generate_sequential(text=torch.zeros(1, 16), max_new_tokens=5)
    assert len(next(frames)) == 1 and not reads
    for count in range(1, 5):
        frame = next(frames)
        assert len(frame) == 6 and len(reads) == count and not frame.is_inference()
    assert not torch.is_inference_mode_enabled()
    frames.close()
    stats = mmspec.last_stats(model)
    assert stats is not None and stats.tokens == 4 * 6


def test_a_seed_of_torch_gives_the_same_samples_twice_and_copies_are_accelerated() -> None:
    model: Any = mmspec.accelerate(LFM2AudioModel(), "scd:window=4")

    def sample(model: Any, seed: int) -> list[Any]:
        torch.manual_seed(seed)
        return call(model, audio_temperature=4.0, audio_top_k=6)

    other = copy.deepcopy(model)
    assert sample(model, 0) == sample(model, 0) == sample(other, 0) != sample(model, 1)
    assert other.generate_sequential.owner is other and mmspec.last_stats(other) is not None


@pytest.mark.slow
def test_samples_follow_the_distribution_of_the_untouched_object() -> None:
    model = LFM2AudioModel(3, codebooks=2, codes=4)

    def sample() -> int:
        first, second = call(model, max_new_tokens=3, audio_temperature=3.0, audio_top_k=3)[1:]
        return int(first[1] + 4 * second[0] + 16 * second[1])

    check_accelerated_samples(model, sample, 300, 6)


def patched() -> LFM2AudioModel:
    model: Any = LFM2AudioModel()
    model._sample_audio_frame = model._sample_audio_frame
    return model


@pytest.mark.parametrize(
    ("make", "settings", "how", "reason"),
    [
        (LFM2AudioModel, {"draft_model": LFM2AudioModel(1), "recipe": "draft"}, {}, "draft_model, heads and table are"),
        (patched, {"recipe": "scd"}, {}, "another package has set generate_sequential or _sample_audio_frame"),
        (LFM2AudioModel, {"recipe": "lantern"}, {}, "the acceptance rule needs the model's codebook"),
        (LFM2AudioModel, {"recipe": "layer-skip"}, {}, "FrameCodes has no early exit"),
        (LFM2AudioModel, {}, {"audio_temperature": 1e-5}, "temperature=1e-05 is not allowed"),
    ],
)
def test_what_runs_without_mmspec(
    make: Any, settings: Any, how: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    def sample(model: Any) -> list[Any]:
        torch.manual_seed(0)
        return call(model, **how)

    own, model = sample(LFM2AudioModel()), mmspec.accelerate(make(), **settings)
    assert sample(model) == own and mmspec.last_stats(model) is None
    (note,) = notes(caplog)
    assert note.startswith("LFM2AudioModel.generate_sequential runs without mmspec: ") and reason in note


@pytest.mark.parametrize("top_k", [0, 13, -3])
def test_what_the_package_fails_at_fails_as_in_the_package(top_k: int) -> None:
    for model in (LFM2AudioModel(), mmspec.accelerate(LFM2AudioModel())):
        with pytest.raises((IndexError, RuntimeError), match="out of"):
            call(model, audio_temperature=1.0, audio_top_k=top_k)


def test_the_latest_call_has_the_statistics() -> None:
    model: Any = mmspec.accelerate(LFM2AudioModel(), "scd")

    def frames() -> int:
        stats = mmspec.last_stats(model)
        return 0 if stats is None else stats.tokens // 6

    counts = []
    for method, count in ((METHODS[0], 3), (METHODS[1], 5), (METHODS[0], 2)):
        call(model, method, max_new_tokens=count + 1)
        counts.append(frames())
    assert counts == [3, 5, 2]
    first = model.generate_sequential(text=torch.zeros(1, 16), max_new_tokens=5)
    next(first), next(first)
    call(model, METHODS[1], max_new_tokens=4)
    counts = [frames()]
    assert [*counts, len(list(first)), frames()] == [3, 3, 4]


@pytest.mark.parametrize("method", METHODS)
def test_the_frames_of_a_call_are_one_run_of_the_window_policy(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    begin = AdaptiveWindow.begin

    def record(policy: AdaptiveWindow, length: int, rows: int = 1) -> None:
        runs.append(length)
        begin(policy, length, rows)

    monkeypatch.setattr(AdaptiveWindow, "begin", record)
    model = mmspec.accelerate(LFM2AudioModel(), "scd:window=auto")
    for _ in range(2):
        call(model, method)
    assert [length for length in runs if length > 1] == [48, 48]  # a policy that is made begins with 1


def test_a_model_can_be_trained_afterwards() -> None:
    model: Any = mmspec.accelerate(LFM2AudioModel(), "scd")
    call(model)
    hidden, _ = model.depthformer.forward_cached(torch.ones(1, 3, 16))
    hidden.sum().backward()
    assert model.depthformer.layers[0].weight.grad is not None


def test_frames_are_tensors_like_the_packages() -> None:
    frame: Tensor
    for model in (LFM2AudioModel(), mmspec.accelerate(LFM2AudioModel())):
        _, frame = model.generate_sequential(text=torch.zeros(1, 16), max_new_tokens=2)
        assert frame.shape == (6,) and frame.dtype == torch.int64 and not frame.requires_grad
