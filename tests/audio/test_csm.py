"""CSM frame by frame: recipes decode the depth, with the distribution of its own `generate`."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_speech as tiny
import torch
from csm_joint import FIRST, GREEDY, PROMPTS, REST, joint_probs
from torch import Tensor

import mmspec
import mmspec.audio.depth.frame_batch
from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.frame_rows import decode_frames
from mmspec.audio.models.csm.decoding import CsmFrames
from mmspec.errors import ArgumentError, ModelError
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.testing.exactness import noise_floor


def call(model: Any, length: int = 6, **more: Any) -> Any:
    mask = (PROMPTS > 0).long()
    return model.generate(PROMPTS, attention_mask=mask, max_new_tokens=length, **{**GREEDY, **more})


@pytest.mark.releases
@pytest.mark.parametrize("recipe", ["scd:window=5", "recycle:window=3", "draft:window=3"])
def test_greedy_matches_the_models_own_generate(recipe: str) -> None:
    ours = {"custom_generate": mmspec.generate, "recipe": recipe}
    for seed, codes, ended in ((0, 9, False), (2, 2, True)):
        model = tiny.csm(seed, codes=codes)
        own = call(model, 12 if ended else 6)
        assert ended == bool((own[:, :, :-1] == 0).all(-1).any())
        draft = {"draft_model": tiny.csm(seed + 1, codes=codes, layers=1)} if recipe.startswith("draft") else {}
        assert torch.equal(call(model, own.shape[1], **ours, **draft), own)


@pytest.mark.releases
def test_audio_matches_its_own_generate() -> None:
    model = tiny.csm(codes=8)
    own = call(model, output_audio=True)
    ours = call(model, output_audio=True, custom_generate=mmspec.generate, recipe="scd:window=3")
    assert len(own) == len(ours) == 2
    for a, b in zip(own, ours, strict=True):
        torch.testing.assert_close(a, b)


def test_a_perfect_draft_is_fully_accepted() -> None:
    """8 codebooks: one call of the backbone, one for the second code, two windows for the other six."""
    model, steps = tiny.csm(codebooks=8), list[Any]()
    more = {"do_sample": True, "depth_decoder_do_sample": True, "return_dict_in_generate": True, "seed": 0}
    ours = {"custom_generate": mmspec.generate, "on_step": steps.append}
    out = call(model, 5, **more, **ours, draft_model=model, recipe="draft:window=4")
    assert out.sequences.shape == (2, 5, 8)
    assert [(step.target_calls, len(step.tokens[0])) for step in steps] == [(4, 1), (8, 2), (12, 3), (16, 4), (20, 5)]
    steps.clear()
    call(model, 5, **more, **ours, recipe="plain")
    assert [step.target_calls for step in steps] == [8, 16, 24, 32, 40]


class Corrupted(CsmFrames):
    """Wrong at every fifth position of the depth, including the third."""

    def depth(self, first: Tensor, start: int, window: int) -> Any:
        return tiny.Corrupted(super().depth(first, start, window), start)


def test_target_calls_of_a_draft_of_known_quality() -> None:
    model = tiny.csm(codebooks=9)
    embeds = model.embed_text_tokens(PROMPTS[1:]).detach()
    prompted = [kind(model, embeds, PROMPTS[1:] > 0, 4) for kind in (CsmFrames, Corrupted, CsmFrames)]
    spec = FrameSpec(4, None, 0, SamplingParams(0), SamplingParams(0))
    made = decode_frames(prompted[0], parse("draft:window=4"), spec, [0], prompted[1])
    own = decode_frames(prompted[2], parse("plain"), spec, [0])
    assert torch.equal(made.frames, own.frames)
    assert made.stats.nfe == 4 * (1 + tiny.calls_with_corrupted(8, 4)) < own.stats.nfe == 4 * 9


def sample(model: Any, frames: int, recipe: str, batch_size: int) -> Tensor:
    def prompted(model: Any) -> CsmFrames:
        embeds = model.embed_text_tokens(PROMPTS[1:]).expand(batch_size, -1, -1)
        return CsmFrames(model, embeds, torch.ones(batch_size, 4, dtype=torch.bool), frames)

    spec = FrameSpec(frames, lambda f: (f[:, :-1] == 0).all(-1), 1, FIRST, REST)
    draft = prompted(tiny.csm(7, codebooks=3, codes=2, layers=1)) if recipe.startswith("draft") else None
    made = decode_frames(prompted(model), parse(recipe), spec, range(batch_size), draft).frames
    made = torch.nn.functional.pad(made, (0, 0, 0, frames - made.shape[1]), value=1)
    number = (made.flatten(1) * 2 ** torch.arange(3 * frames - 1, -1, -1)).sum(1)
    return torch.bincount(number, minlength=2 ** (3 * frames)).double() / batch_size


@pytest.mark.parametrize(
    "recipe",
    [
        "scd:window=3,start=up",
        "draft:window=3",
        pytest.param("plain", marks=pytest.mark.slow),
        pytest.param("scd:window=3,coupling=gumbel", marks=pytest.mark.slow),
    ],
)
def test_samples_follow_the_target_distribution(recipe: str) -> None:
    model, rows = tiny.csm(2, codebooks=3, codes=2, spread=0.1), 6_000
    with torch.inference_mode():
        joint = joint_probs(model, 2)
    assert abs(float(joint.sum()) - 1) < 1e-5
    floor, spread = noise_floor(joint, rows)
    assert float((sample(model, 2, recipe, rows) - joint).abs().sum() / 2) < floor + 5 * spread


def test_frames_that_share_random_numbers_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = tiny.csm(2, codebooks=3, codes=2, spread=0.1), 6_000
    monkeypatch.setattr(mmspec.audio.depth.depth_decoding, "frame_seed", lambda seed, frame: seed)
    with torch.inference_mode():
        joint = joint_probs(model, 2)
    floor, spread = noise_floor(joint, rows)
    assert float((sample(model, 2, "plain", rows) - joint).abs().sum() / 2) > 2 * (floor + 5 * spread)


def test_errors() -> None:
    model = tiny.csm()
    ours: dict[str, Any] = {"custom_generate": mmspec.generate}
    with pytest.raises(ModelError, match="num_codebooks=3, the model 4"):
        call(model, **ours, recipe="draft", draft_model=tiny.csm(codebooks=3))
    with pytest.raises(ArgumentError, match="a depth decoder reads windows only"):
        call(model, **ours, recipe="tree", draft_model=model)
    with pytest.raises(ArgumentError, match="repetition_penalty and its like are not supported for CSM"):
        call(model, **ours, repetition_penalty=1.5)
