"""Windows that are chosen while decoding, and draft models, in models with a depth decoder."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_speech as tiny
import torch
from csm_joint import FIRST, GREEDY, PROMPTS, REST, joint_probs

import mmspec
from mmspec.audio.depth.depth_decoding import DecodedFrames, FrameSpec
from mmspec.audio.depth.frame_rows import decode_frames
from mmspec.audio.models.csm.decoding import CsmFrames
from mmspec.decoding.adaptive_window import AdaptiveWindow
from mmspec.decoding.window_policy import AdaptiveWindows, adaptive_windows_of
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.testing.exactness import noise_floor


class Turns(AdaptiveWindow):
    """Widths in turn, without a clock."""

    turn = 0

    def choose(self) -> int:
        self.turn += 1
        return self.widths[self.turn % len(self.widths)]

    def steps(self) -> int:
        return 2

    def together(self) -> bool:
        return False


def frames_of(model: Any, batch_size: int, length: int, slack: int = 0) -> CsmFrames:
    embeds = model.embed_text_tokens(PROMPTS[1:]).detach().expand(batch_size, -1, -1)
    return CsmFrames(model, embeds, torch.ones(batch_size, 4, dtype=torch.bool), length, slack)


def test_csm_follows_the_target_distribution_under_changing_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.decoding.adaptive_window.AdaptiveWindow", Turns)
    model, rows = tiny.csm(2, codebooks=3, codes=2, spread=0.1), 6_000
    spec = FrameSpec(2, lambda frames: (frames[:, :-1] == 0).all(-1), 1, FIRST, REST)
    made = decode_frames(frames_of(model, rows, 2), parse("scd:window=auto,start=up"), spec, range(rows)).frames
    made = torch.nn.functional.pad(made, (0, 0, 0, 2 - made.shape[1]), value=1)
    number = (made.flatten(1) * 2 ** torch.arange(5, -1, -1)).sum(1)
    with torch.inference_mode():
        joint = joint_probs(model, 2)
    floor, spread = noise_floor(joint, rows)
    found = torch.bincount(number, minlength=64).double() / rows
    assert float((found - joint).abs().sum() / 2) < floor + 5 * spread


def test_all_frames_share_one_controller() -> None:
    model, windows = tiny.csm(codebooks=9), AdaptiveWindows()
    spec = FrameSpec(6, None, 0, SamplingParams(0), SamplingParams(0))
    auto = decode_frames(frames_of(model, 1, 6), parse("scd:window=auto"), spec, [0], adaptive_windows=windows)
    plain = decode_frames(frames_of(model, 1, 6), parse("plain"), spec, [0])
    assert torch.equal(auto.frames, plain.frames)
    (controller,) = windows.values()
    assert isinstance(controller, AdaptiveWindow)
    # The clock decides whether a width of 2 is tried twice, which its rate takes.
    assert {1, 2} <= controller.tried, "both widths were tried, over several frames"
    ahead = decode_frames(
        frames_of(model, 1, 6, 3), parse("scd:window=auto"), spec, [0], ahead=3, adaptive_windows=windows
    )
    assert torch.equal(ahead.frames, plain.frames)
    assert [each.stats.window for each in (auto, plain, ahead)] == [32, 1, 32]
    controllers = [each for each in windows.values() if isinstance(each, AdaptiveWindow)]
    assert len(controllers) == 2 and max(max(each.widths) for each in controllers) <= 32


@pytest.mark.parametrize("family", ["csm", "moshi"])
def test_generate_keeps_the_controller_with_the_model(family: str) -> None:
    model = tiny.csm(codebooks=5) if family == "csm" else tiny.moshi()
    if family == "csm":
        inputs: dict[str, Any] = {"input_ids": PROMPTS, "attention_mask": (PROMPTS > 0).long(), "max_new_tokens": 4}
        own = model.generate(**inputs, **GREEDY)
        ours = model.generate(**inputs, **GREEDY, custom_generate=mmspec.generate, recipe="scd:window=auto")
        assert torch.equal(ours, own)
    else:
        prompts = model.get_unconditional_inputs(num_samples=2)
        how: dict[str, Any] = {"do_sample": False, "depth_decoder_do_sample": False, "max_new_tokens": 6}
        own = model.generate(**prompts, **how)
        prompts = model.get_unconditional_inputs(num_samples=2)
        ours = model.generate(**prompts, **how, custom_generate=mmspec.generate, recipe="scd:window=auto")
        assert torch.equal(ours.sequences, own.sequences)
    ((recipe, _, _),) = adaptive_windows_of(model)
    assert recipe == "scd:window=auto"


@pytest.mark.parametrize(
    ("recipe", "uses"),
    [
        ("draft:window=3", True),
        ("scd:window=3,start=model", True),
        ("sjd:window=3,start=model", True),
        ("scd:window=3", False),
        ("plain", False),
    ],
)
def test_a_draft_model_serves_every_recipe_that_can_use_one(recipe: str, uses: bool) -> None:
    model, small = tiny.csm(codebooks=6), tiny.csm(7, codebooks=6, layers=1)
    spec = FrameSpec(3, None, 0, SamplingParams(0), SamplingParams(0))

    def decoded(draft: Any) -> DecodedFrames:
        drafter = None if draft is None else frames_of(draft, 2, 3)
        return decode_frames(frames_of(model, 2, 3), parse(recipe), spec, [0, 1], drafter)

    made = decoded(small)
    assert (made.stats.draft_calls > 0) == uses
    assert torch.equal(made.frames, decode_frames(frames_of(model, 2, 3), parse("plain"), spec, [0, 1]).frames)
