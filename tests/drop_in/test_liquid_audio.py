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
    ("make", "settings", "reason"),
    [
        (LFM2AudioModel, {"draft_model": LFM2AudioModel(1), "recipe": "draft"}, "draft_model, heads and table are not"),
        (patched, {"recipe": "scd"}, "another package has set generate_sequential or _sample_audio_frame"),
    ],
)
def test_what_runs_without_mmspec(make: Any, settings: Any, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    own, model = call(LFM2AudioModel()), mmspec.accelerate(make(), **settings)
    assert call(model) == own and mmspec.last_stats(model) is None
    (note,) = notes(caplog)
    assert note.startswith("LFM2AudioModel.generate_sequential runs without mmspec: ") and reason in note


def test_the_latest_call_has_the_statistics() -> None:
    model: Any = mmspec.accelerate(LFM2AudioModel(), "scd")
    counts = []
    for method, frames in ((METHODS[0], 3), (METHODS[1], 5), (METHODS[0], 2)):
        call(model, method, max_new_tokens=frames + 1)
        stats = mmspec.last_stats(model)
        assert stats is not None
        counts.append(stats.tokens // 6)
    assert counts == [3, 5, 2]


def test_frames_are_tensors_like_the_packages() -> None:
    frame: Tensor
    for model in (LFM2AudioModel(), mmspec.accelerate(LFM2AudioModel())):
        _, frame = model.generate_sequential(text=torch.zeros(1, 16), max_new_tokens=2)
        assert frame.shape == (6,) and frame.dtype == torch.int64 and not frame.requires_grad


def test_sampling_that_is_not_taken_raises_the_error_of_the_package(caplog: pytest.LogCaptureFixture) -> None:
    how: dict[str, Any] = {"audio_temperature": 4.0, "audio_top_k": 13}
    for model in (LFM2AudioModel(), mmspec.accelerate(LFM2AudioModel(), "scd")):
        with pytest.raises(RuntimeError, match="out of range"):
            call(model, **how)
    (note,) = notes(caplog)
    assert "audio_top_k=13" in note


def test_two_calls_at_once_keep_their_frames_and_a_window_policy_lasts_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[int, ...]] = []
    begin = AdaptiveWindow.begin

    def record(policy: AdaptiveWindow, *args: int) -> None:
        begun.append(args)
        begin(policy, *args)

    monkeypatch.setattr(AdaptiveWindow, "begin", record)
    model: Any = mmspec.accelerate(LFM2AudioModel(), "scd:window=auto")
    text = torch.linspace(-1, 1, 16)[None]
    own, other = (model.generate_sequential(text=text, max_new_tokens=5) for _ in range(2))
    pairs = [[token.tolist() for token in both] for both in zip(own, other, strict=True)]
    assert all(first == second for first, second in pairs)
    assert begun.count((30, 1)) == 2
