"""aMUSEd: the tokens of diffusers' pipeline with the same random numbers, in one or several steps per call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_amused import tiny_amused
from torch import Tensor

import mmspec
from mmspec.errors import ArgumentError
from mmspec.vision.amused import AmusedPipeline
from mmspec.vision.amused.process import AmusedProcess

PROMPTS = ["a red cat", "a blue dog"]


@pytest.fixture(scope="module")
def pipe() -> AmusedPipeline:
    return tiny_amused()


def test_plain_decoding_gives_the_tokens_of_diffusers(pipe: AmusedPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The original samples with torch's generator; here it gets our noise instead, step by step."""
    import diffusers
    from diffusers.schedulers import scheduling_amused

    noise: list[tuple[Tensor, Tensor]] = []
    drawn = AmusedProcess.noise

    def record(self: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        noise.append(drawn(self, *arguments))
        return noise[-1]

    with monkeypatch.context() as patch:
        patch.setattr(AmusedProcess, "noise", record)
        ours = pipe(PROMPTS, seed=3, steps=5, guidance_scale=3.0, output_type="np")
    assert ours.stats.target_calls == 5 and int((ours.tokens == pipe.scheduler.config.mask_token_id).sum()) == 0

    def sampled(p: Tensor, count: int, generator: Any = None) -> Tensor:
        return (p.log() + noise[0][0].flatten(0, 1)).argmax(-1, keepdim=True)

    def confidence(probs: Tensor, generator: Any = None) -> Tensor:
        return noise.pop(0)[1]

    monkeypatch.setattr(torch, "multinomial", sampled)
    monkeypatch.setattr(scheduling_amused, "gumbel_noise", confidence)
    original = diffusers.AmusedPipeline(**{name: pipe.components[name] for name in pipe.components})
    original.set_progress_bar_config(disable=True)
    found = original(PROMPTS, num_inference_steps=5, guidance_scale=3.0, output_type="np", negative_prompt=["", ""])
    np.testing.assert_allclose(ours.images, found.images, atol=1e-5)


@pytest.mark.parametrize("temperature", [(2.0, 0.0), 0.5])
def test_steps_ahead_give_the_same_tokens_in_fewer_calls(pipe: AmusedPipeline, temperature: Any) -> None:
    settings: dict[str, Any] = {"steps": 8, "guidance_scale": 2.0, "temperature": temperature, "output_type": "latent"}
    plain = pipe(PROMPTS * 3, seed=0, **settings)
    ahead = pipe(PROMPTS * 3, seed=0, ahead=4, **settings)
    assert torch.equal(plain.tokens, ahead.tokens)
    assert plain.stats.target_calls == 8 and ahead.stats.target_calls <= 8
    # A row does not depend on its batch.
    alone = pipe(PROMPTS[1], seed=3, ahead=3, **settings)
    assert torch.equal(alone.tokens[0], plain.tokens[3])


def test_confident_tokens_are_kept_beyond_the_schedule(pipe: AmusedPipeline) -> None:
    settings: dict[str, Any] = {"seed": 0, "steps": 12, "guidance_scale": 30.0, "output_type": "latent"}
    plain, sure = pipe(PROMPTS, **settings), pipe(PROMPTS, confidence=0.05, **settings)
    assert sure.stats.target_calls < plain.stats.target_calls == 12
    assert torch.equal(sure.tokens, pipe(PROMPTS, confidence=0.05, ahead=3, **settings).tokens)
    assert int((sure.tokens == pipe.scheduler.config.mask_token_id).sum()) == 0
    assert pipe(PROMPTS, confidence=0.0, **settings).stats.target_calls == 1


def test_callbacks_see_what_is_missing_and_may_end_the_call(pipe: AmusedPipeline) -> None:
    seen: list[int] = []

    def stop(pipe: Any, calls: int, done: int, tensors: dict[str, Tensor]) -> None:
        seen.append(int((tensors["tokens"] >= 0).sum()))
        assert seen[-1] == done
        pipe._interrupt = calls == 2

    out = pipe(PROMPTS, seed=0, steps=5, callback_on_step_end=stop)
    assert len(seen) == 2 and 0 < seen[0] < seen[1] < out.tokens.numel() and len(out.images) == 2


def test_a_saved_pipeline_is_loaded_by_name(pipe: AmusedPipeline, tmp_path: Path) -> None:
    pipe.save_pretrained(tmp_path)
    again = mmspec.load(str(tmp_path))
    again.set_progress_bar_config(disable=True)
    assert isinstance(again, AmusedPipeline)
    settings: dict[str, Any] = {"seed": 1, "steps": 3, "output_type": "latent"}
    assert torch.equal(again(PROMPTS, **settings).tokens, pipe(PROMPTS, **settings).tokens)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"recipe": "scd"}, "a masked model fills places in any order; use 'plain'"),
        ({"steps": 0}, "steps=0 is not allowed"),
        ({"ahead": 0}, "ahead=0 is not allowed"),
        ({"steps": 2, "ahead": 3}, "ahead=3 is not allowed"),
        ({"confidence": 2}, "confidence=2 is not allowed"),
        ({"temperature": (1.0,)}, r"temperature=\(1.0,\) is not allowed; it must be a number, or two"),
        ({"temperature": "hot"}, "temperature='hot' is not allowed; it must be a number, or two"),
        ({"negative_prompt": ["a", "b", "c"]}, "negative_prompt has 3 texts for"),
        ({"temperature": -1.0}, "temperature=-1.0 is not allowed"),
        ({"typical_p": 0.5}, "typical_p is not an argument of AmusedPipeline: every step of its scheduler samples"),
    ],
)
def test_arguments_that_are_refused(pipe: AmusedPipeline, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        pipe(PROMPTS, **arguments)
