"""Speech models of latents: results of their own loops, windows against single latents, and every drafter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tiny_latents import AUDIO, planned_head, tiny, vibevoice
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

import mmspec.audio.models.vibevoice.decoding
from mmspec.audio.models.pocket.decoding import speak
from mmspec.audio.models.vibevoice.decoding import converse
from mmspec.decoding import no_gain
from mmspec.errors import ArgumentError
from mmspec.sampling.rng import CounterRNG

# diffusers hands tensors to NumPy in its solver.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

IDS = torch.tensor([[3, 3, 5, 6, 7, 33], [4, 5, 8, 9, 10, 33]])
PROMPT = {"input_ids": IDS, "attention_mask": (IDS != 3).long(), "frames_after_eos": torch.tensor([2, 1])}
DRAFTED = [
    "draft+smoothed:window=4,sigma=0.3", "layer-skip+smoothed:layers=1,sigma=0.5", "scd+smoothed:window=4,sigma=0.3",
    "draft+cspd:window=3", "few-steps+tolerance:distance=0.2",
]  # fmt: skip


def with_voice(family: str) -> dict[str, Any]:
    first = [32] if family == "pocket" else []
    ids = torch.tensor([[*first, 30, 30, 5, 6, 33], [*first, 30, 30, 8, 9, 33]])
    voice = torch.randn(2, 2, 4 if family == "pocket" else 6, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 2, dtype=torch.long)
    return {"input_ids": ids, "audio_prompt_latents": voice, "audio_prompt_latents_mask": mask}


MODELS = [("pocket", "lsd"), ("pocket", "drifting"), ("phonon", "lsd")]


@pytest.mark.releases
@pytest.mark.parametrize(("family", "flow"), MODELS)
def test_plain_decoding_matches_the_models_own_loop(family: str, flow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, frames = tiny(family, flow), 10
    noise = CounterRNG([5, 6], torch.device("cpu")).normals(np.tile(np.arange(frames), (2, 1)), 4)
    for prompt, temperature in ((PROMPT, 0.0), (PROMPT, 0.7), (with_voice(family), 0.7)):
        remaining = iter(noise.unbind(1))
        with monkeypatch.context() as patch:
            patch.setattr(torch, "randn", lambda *a, remaining=remaining, **k: next(remaining))
            own = model.generate(
                **{"frames_after_eos": 1, **prompt}, do_sample=temperature > 0, temperature=temperature or None,
                max_new_tokens=frames, num_flow_steps=2, eos_threshold=100.0, return_dict_in_generate=True,
            )  # fmt: skip
        ours = speak(
            model, prompt, seed=5, temperature=temperature, max_frames=frames, num_flow_steps=2, eos_threshold=100.0
        )
        assert torch.equal(ours.audio_latents_mask, own.audio_latents_mask)
        assert float((ours.audio_latents - own.audio_latents).abs().max()) < 1e-5


def test_rows_end_as_in_the_models_own_loop() -> None:
    model = tiny("pocket")
    own = model.generate(
        **PROMPT, do_sample=False, max_new_tokens=30, eos_threshold=0.0, min_frames_before_eos=3,
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    scores = torch.stack(own.scores, 1)
    # A threshold that each row exceeds at another frame, if at all.
    threshold = float(scores[:, 3:].flatten().sort().values[-3])
    own = model.generate(
        **PROMPT, do_sample=False, max_new_tokens=30, eos_threshold=threshold, min_frames_before_eos=3,
        return_dict_in_generate=True,
    )  # fmt: skip
    for recipe in ("plain", "few-steps+tolerance:steps=1,distance=0.0001,window=4", "scd+tolerance:distance=0.00001"):
        ours = speak(
            model, PROMPT, recipe, temperature=0, max_frames=30, eos_threshold=threshold, min_frames_before_eos=3
        )
        assert torch.equal(ours.audio_latents_mask, own.audio_latents_mask), recipe
        assert float((ours.audio_latents - own.audio_latents).abs().max()) < 1e-3
    assert int(own.audio_latents_mask.sum(1).min()) < 30


@pytest.mark.parametrize(("flow", "flow_steps", "said"), [("lsd", 1, True), ("lsd", 3, False), ("drifting", 3, True)])
def test_few_steps_of_a_head_with_as_few_are_said(
    flow: str, flow_steps: int, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    no_gain._tell.cache_clear()
    call: dict[str, Any] = {"max_frames": 4, "num_flow_steps": flow_steps}
    speak(tiny("pocket", flow), PROMPT, "few-steps+tolerance:steps=2,distance=0.2,window=3", **call)
    assert ("save no time" in caplog.text) == said


@pytest.mark.releases
@pytest.mark.parametrize(("family", "flow"), MODELS)
def test_windows_match_single_latents(family: str, flow: str) -> None:
    model = tiny(family, flow)
    call: dict[str, Any] = {"seed": 1, "max_frames": 17, "eos_threshold": 100.0}
    plain = speak(model, PROMPT, **call)
    # The target drafts for itself: every draft is accepted and equals the target's own latent.
    window = speak(model, PROMPT, "few-steps+tolerance:steps=1,distance=0.00001,window=5", **call)
    assert float((window.audio_latents - plain.audio_latents).abs().max()) < 1e-5
    assert window.stats.acceptance == [1.0] * 4 and window.stats.farthest < 1e-5
    # Rejected drafts and rolled-back KV caches change nothing.
    jacobi = speak(model, PROMPT, "sjd+tolerance:distance=0.000002,window=5", **call)
    assert float((jacobi.audio_latents - plain.audio_latents).abs().max()) < 1e-4
    alone = speak(
        model, {name: part[1:] for name, part in PROMPT.items()}, "scd+smoothed:window=3", **{**call, "seed": 2}
    )
    both = speak(model, PROMPT, "scd+smoothed:window=3", **call)
    assert float((alone.audio_latents[0] - both.audio_latents[1]).abs().max()) < 1e-4


@pytest.mark.parametrize("recipe", DRAFTED)
def test_pocket_drafters(recipe: str) -> None:
    model, draft = tiny("pocket"), tiny("pocket", layers=1)
    out = speak(model, PROMPT, recipe, draft_model=draft, seed=0, max_frames=12, num_flow_steps=5, eos_threshold=100.0)
    assert out.audio_latents.shape == (2, 12, 4) and bool(out.audio_latents.isfinite().all())
    assert out.stats.tokens == 24 and out.stats.tokens_per_call >= 1


def test_pocket_errors() -> None:
    model = tiny("pocket")
    with pytest.raises(ArgumentError, match="discrete tokens"):
        speak(model, PROMPT, "scd")
    with pytest.raises(ArgumentError, match="layers=3"):
        speak(model, PROMPT, "layer-skip+smoothed:layers=3")
    with pytest.raises(ArgumentError, match="past_key_values"):
        speak(model, {**PROMPT, "past_key_values": None})
    other = tiny("pocket")
    other.latent_std.mul_(2)
    with pytest.raises(ArgumentError, match="latent_std"):
        speak(model, PROMPT, "draft+smoothed", draft_model=other)


SCRIPT = torch.tensor([[5, 6, 7, 8, 2]])
PLANS = [[4, 4, 4, 4, 4, 4, 1], [4, 4, 4, 3, 2, 4, 4, 4, 1], [2, 4, 4, 3, 2, 4, 4, 1]]


class PlannedKinds(LogitsProcessor):
    """Makes the model's own loop generate the kinds of a plan; random weights would not."""

    def __init__(self, plan: list[int]) -> None:
        self.kinds: Iterator[int] = iter(plan)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        out = torch.full_like(scores, -torch.inf)
        out[:, next(self.kinds)] = 0
        return out


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An empty plan of kinds for mmspec's head, to be filled by the test."""
    plan: list[int] = []

    monkeypatch.setattr(mmspec.audio.models.vibevoice.decoding, "VibeVoiceHead", planned_head(plan))
    return plan


@pytest.mark.releases
@pytest.mark.parametrize("guidance", [1.0, 2.0])
@pytest.mark.parametrize("kinds", PLANS)
def test_vibevoice_matches_its_own_loop(
    kinds: list[int], guidance: float, planned: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = vibevoice()
    planned += kinds
    noise = CounterRNG([3], torch.device("cpu")).normals(np.arange(len(kinds))[None], 6)[0]
    remaining, real = iter([n for n, kind in zip(noise, kinds, strict=True) if kind == AUDIO]), torch.randn
    with monkeypatch.context() as patch:
        patch.setattr(torch, "randn", lambda *a, **k: next(remaining).repeat(2, 1) if a == (2, 6) else real(*a, **k))
        own = model.generate(
            input_ids=SCRIPT, attention_mask=torch.ones_like(SCRIPT), max_new_tokens=len(kinds),
            logits_processor=LogitsProcessorList([PlannedKinds(kinds)]), guidance_scale=guidance, num_diffusion_steps=5,
            return_dict_in_generate=True,
        )  # fmt: skip
    call: dict[str, Any] = {"seed": 3, "max_tokens": len(kinds), "guidance_scale": guidance, "num_diffusion_steps": 5}
    plain = converse(model, {"input_ids": SCRIPT}, **call)
    assert plain.tokens[0][:, -1].tolist() == kinds
    assert float((plain.audio[0] - own.audio[0].view(1, -1)).abs().max()) < 1e-4
    window = converse(model, {"input_ids": SCRIPT}, "few-steps+tolerance:steps=5,distance=0.00001,window=4", **call)
    assert window.stats.acceptance == [1.0] * 3
    assert float((window.tokens[0] - plain.tokens[0]).abs().max()) < 1e-5
    # Rejected drafts: the caches of the language model and of both audio tokenizers are rolled back.
    jacobi = converse(model, {"input_ids": SCRIPT}, "sjd+tolerance:distance=0.000002,window=4", **call)
    assert float((jacobi.tokens[0] - plain.tokens[0]).abs().max()) < 1e-4
    assert jacobi.stats.acceptance[0] is not None and jacobi.stats.acceptance[0] < 1


@pytest.mark.parametrize("recipe", DRAFTED)
def test_vibevoice_drafters(recipe: str, planned: list[int]) -> None:
    planned += [4] * 9 + [1]
    model, draft = vibevoice(), vibevoice(layers=1)
    inputs = {"input_ids": SCRIPT.repeat(2, 1)}
    out = converse(model, inputs, recipe, draft_model=draft, seed=0, max_tokens=10, num_diffusion_steps=6)
    assert [len(row) for row in out.tokens] == [10, 10] and out.audio[0].shape == (1, 72)
    alone = converse(
        model, {"input_ids": SCRIPT}, recipe, draft_model=draft, seed=1, max_tokens=10, num_diffusion_steps=6
    )
    assert float((alone.tokens[0] - out.tokens[1]).abs().max()) < 1e-3


def test_vibevoice_predicts_kinds() -> None:
    model = vibevoice()
    plain = converse(model, {"input_ids": SCRIPT}, seed=0, max_tokens=8)
    window = converse(
        model, {"input_ids": SCRIPT}, "few-steps+tolerance:steps=10,distance=0.0001,window=4", seed=0, max_tokens=8
    )
    assert window.tokens[0][:, -1].tolist() == plain.tokens[0][:, -1].tolist()
    assert set(plain.tokens[0][:, -1].tolist()) <= {1.0, 2.0, 3.0, 4.0}
    voice = {"input_values": torch.randn(1, 1, 16), "padding_mask": torch.ones(1, 16, dtype=torch.bool)}
    ids = torch.tensor([[5, 4, 4, 7, 2]])
    assert converse(model, {"input_ids": ids, **voice}, seed=0, max_tokens=3).stats.tokens > 0
    with pytest.raises(ArgumentError, match="max_tokens=0"):
        converse(model, {"input_ids": SCRIPT}, max_tokens=0)
