"""CSM with windows of several frames: the same results as code by code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tiny_speech as tiny
import torch
from csm_joint import FIRST, GREEDY, PROMPTS, REST, joint_probs
from torch import Tensor

import mmspec
from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.frame_rows import decode_frames
from mmspec.audio.depth.frame_windows import FrameTarget
from mmspec.audio.models.csm.decoding import CsmFrames, generate_ahead
from mmspec.errors import ArgumentError
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.testing.exactness import noise_floor


def prompted(model: Any, batch_size: int, length: int, slack: int) -> CsmFrames:
    embeds = model.embed_text_tokens(PROMPTS[1:]).detach().expand(batch_size, -1, -1)
    return CsmFrames(model, embeds, torch.ones(batch_size, 4, dtype=torch.bool), length, slack)


@pytest.mark.releases
@pytest.mark.parametrize("recipe", ["plain", "scd", "recycle", "draft"])
def test_greedy_matches_the_models_own_generate(recipe: str) -> None:
    """Also if rows end, each at another frame."""
    ours: dict[str, Any] = {"custom_generate": generate_ahead, "recipe": recipe, "ahead": 2}
    for seed, codes, length in ((0, 9, 6), (2, 2, 12)):
        model = tiny.csm(seed, codes=codes)
        call = {"input_ids": PROMPTS, "attention_mask": (PROMPTS > 0).long(), "max_new_tokens": length, **GREEDY}
        own = model.generate(**call)
        assert (codes == 2) == bool((own[:, :, :-1] == 0).all(-1).any())
        draft = {"draft_model": tiny.csm(seed + 1, codes=codes, layers=1)} if recipe == "draft" else {}
        assert torch.equal(model.generate(**call, **ours, **draft), own)


def test_target_calls_of_a_perfect_draft() -> None:
    """7 frames of 4: the first token, then windows of 1 + 2 * 4 tokens."""
    model, calls = tiny.csm(), {"backbone": 0, "depth": 0}
    hooks = [
        model.backbone_model.register_forward_hook(lambda *_: calls.update(backbone=calls["backbone"] + 1)),
        model.depth_decoder.model.norm.register_forward_hook(lambda *_: calls.update(depth=calls["depth"] + 1)),
    ]
    spec = FrameSpec(7, None, 0, SamplingParams(1.0), SamplingParams(1.0))
    draft = prompted(tiny.csm(), 1, 7, 2)  # the same weights, without the hooks
    made = decode_frames(prompted(model, 1, 7, 2), parse("draft"), spec, [3], draft, ahead=2)
    for hook in hooks:
        hook.remove()
    assert made.frames.shape == (1, 7, 4) and made.stats.acceptance == [1.0] * 8 and made.stats.window == 9
    assert made.stats.nfe == 4 and calls == {"backbone": 4, "depth": 3}  # 1 + 9 + 9 + 9


def sample(model: Any, recipe: str, batch_size: int) -> Tensor:
    spec = FrameSpec(2, lambda f: (f[..., :-1] == 0).all(-1), 1, FIRST, REST)
    small = tiny.csm(7, codebooks=3, codes=2, layers=1)
    draft = prompted(small, batch_size, 2, 2) if recipe == "draft" else None
    out = decode_frames(prompted(model, batch_size, 2, 2), parse(recipe), spec, range(batch_size), draft, ahead=2)
    assert out.stats.tokens_per_call > 1
    made = torch.nn.functional.pad(out.frames, (0, 0, 0, 2 - out.frames.shape[1]), value=1)
    return torch.bincount((made.flatten(1) * 2 ** torch.arange(5, -1, -1)).sum(1), minlength=64).double() / batch_size


@pytest.mark.parametrize("recipe", ["draft", "scd:start=up", pytest.param("sjd", marks=pytest.mark.slow), "recycle"])
def test_samples_follow_the_target_distribution(recipe: str) -> None:
    """64 sequences of 2 frames, some of which end after the first; the first token has its own sampling parameters.

    With 6000 samples the noise floor is near 0.03, the limit 0.015 above it.
    """
    model, rows = tiny.csm(2, codebooks=3, codes=2, spread=0.1), 6_000
    with torch.inference_mode():
        joint = joint_probs(model, 2)
    floor, spread = noise_floor(joint, rows)
    assert float((sample(model, recipe, rows) - joint).abs().sum() / 2) < floor + 5 * spread


def test_states_of_rejected_frames_that_are_kept_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken variant in which the depth decoder starts from the hidden state of a rejected frame."""

    def kept(self: FrameTarget, frames: torch.Tensor) -> None:
        hidden, index = self._model.hidden(), frames[..., None]
        before = self._hidden.gather(1, index.expand(hidden.shape))
        first = torch.where((before == 0).all(-1, keepdim=True), hidden, before)
        self._hidden = self._hidden.scatter(1, index.expand(hidden.shape), first)

    monkeypatch.setattr(FrameTarget, "_keep_hidden", kept)
    model, rows = tiny.csm(2, codebooks=3, codes=2, spread=0.25), 6_000
    with torch.inference_mode():
        joint = joint_probs(model, 2)
    floor, spread = noise_floor(joint, rows)
    found = float((sample(model, "scd:start=up", rows) - joint).abs().sum() / 2)
    assert found > 2 * (floor + 5 * spread), found


def test_pipeline_with_windows_of_several_frames() -> None:
    inside, ahead = (
        mmspec.load(tiny.csm(codes=8), processor=tiny.tokenizer(), config={"frames": 8, "ahead": n}) for n in (0, 2)
    )
    texts = ["one two three", "two"]
    a, b = (pipe(texts, recipe="scd:window=4", temperature=0, seed=0) for pipe in (inside, ahead))
    for one, other in zip(a, b, strict=True):
        np.testing.assert_allclose(one.audio, other.audio, atol=1e-5)
    with pytest.raises(ArgumentError, match="the first layers cannot draft here: FrameTarget has no early exit"):
        ahead("two", recipe="layer-skip:layers=1")


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_a_row_that_ends_with_the_last_frame_that_fits_is_not_truncated(ahead: int) -> None:
    """The end token of windows of several frames, which follows that frame, has no place any more."""
    model = tiny.csm(2, codes=2)
    pipe = mmspec.load(model, processor=tiny.tokenizer(), config={"frames": 12, "ahead": ahead})
    texts = ["one two", "two", "three one two"]
    lengths = [pipe.adapter.codes(out.tokens[0]).shape[1] + 1 for out in pipe(texts, seed=3)]  # with the end
    assert max(lengths) < 12
    for frames in (max(lengths), max(lengths) - 1):
        exact = mmspec.load(model, processor=tiny.tokenizer(), config={"frames": frames, "ahead": ahead})
        outs = exact(texts, seed=3)
        assert [out.truncated for out in outs] == [length > frames for length in lengths]
        engine, found = mmspec.Engine(exact), dict[str, Any]()
        for i, text in enumerate(texts):
            engine.add(text, request_id=str(i), seed=3 + i)
        while engine.has_unfinished:
            found |= {output.request_id: output for output in engine.step() if output.finished}
        for i, out in enumerate(outs):
            assert found[str(i)].result.truncated == out.truncated
            assert found[str(i)].finish_reason == ("length" if out.truncated else "stop")
