"""Bark's two autoregressive stages in its own `generate`, with recipes in place of the built-in loop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import tiny_speech as tiny
import torch
from torch import Tensor
from transformers.models.bark.generation_configuration_bark import (
    BarkCoarseGenerationConfig,
    BarkSemanticGenerationConfig,
)

import mmspec
from mmspec.errors import ArgumentError
from mmspec.hf.generate import captured_job
from mmspec.testing.adapters import check_windows
from mmspec.testing.exactness import noise_floor

TEXT = torch.tensor([[1, 2, 3, 4, 5, 6], [5, 6, 7, 8, 18, 18]])
CODES = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 20]])
SEMANTIC, COARSE = BarkSemanticGenerationConfig(**tiny.SEMANTIC), BarkCoarseGenerationConfig(**tiny.COARSE)
RECIPES = ["sjd:window=5,start=left", "recycle:window=3", "layer-skip:layers=1,window=3"]


def semantic(model: Any, text: Tensor = TEXT, **more: Any) -> Tensor:
    found: Tensor = model.semantic.generate(text, semantic_generation_config=SEMANTIC, **more)
    return found


def coarse(model: Any, codes: Tensor = CODES, size: int = 8, window: int = 6, **more: Any) -> Tensor:
    config = BarkCoarseGenerationConfig(**{**tiny.COARSE, "sliding_window_len": window})
    found: Tensor = model.coarse_acoustics.generate(
        codes.clone(), semantic_generation_config=SEMANTIC, coarse_generation_config=config, codebook_size=size, **more
    )
    return found


@pytest.mark.releases
@pytest.mark.parametrize("recipe", RECIPES)
def test_greedy_matches_the_models_own_generate(recipe: str) -> None:
    model = tiny.bark()
    ours: dict[str, Any] = {"custom_generate": mmspec.generate, "recipe": recipe}
    for least in (None, 0.02):
        own = semantic(model, min_eos_p=least)
        assert (own == 20).any() == (least is not None)
        assert torch.equal(semantic(model, min_eos_p=least, **ours), own)
    own = coarse(model)
    assert own.shape == (2, 18)  # three windows of 6
    assert torch.equal(coarse(model, **ours), own)
    assert torch.equal(model.generate(TEXT, **ours, seed=0), model.generate(TEXT))


def test_a_smaller_model_drafts_the_coarse_stage() -> None:
    model, other = tiny.bark(), tiny.bark(seed=1)
    own = coarse(model)
    for draft, calls in ((model, 2), (other, 6)):
        ours: dict[str, Any] = {"custom_generate": mmspec.generate, "recipe": "draft:window=6"}
        out: Any = coarse(model, **ours, draft_model=draft.coarse_acoustics, window=6)
        assert torch.equal(out, own)
        steps: list[Any] = []
        coarse(model, **ours, draft_model=draft.coarse_acoustics, on_step=steps.append)
        assert len(steps) == 3 * calls if draft is model else 3 * 2 < len(steps) <= 3 * calls
    with pytest.raises(ArgumentError, match="coarse_draft_model"):
        semantic(model, custom_generate=mmspec.generate, recipe="draft", draft_model=other.semantic)


@pytest.mark.releases
def test_windows_match_single_tokens() -> None:
    model = tiny.bark()

    def make_semantic(batch_size: int, window: int) -> Any:
        texts = TEXT[:1].expand(batch_size, -1)
        job = captured_job(lambda capture: semantic(model, texts, custom_generate=capture, min_eos_p=0.5))
        return job.target(job.plan, window)

    assert check_windows(make_semantic, 14) < 1e-4


def sampled(model: Any, batch_size: int, **more: Any) -> Tensor:
    """Frequencies of the 64 outcomes of three windows of two tokens, float64 [64]."""
    made = coarse(
        model, CODES[:1, :2].expand(batch_size, -1), size=2, window=2, do_sample=True, temperature=0.9, **more
    )
    bits = (made - 20) % 2
    return torch.bincount((bits * 2 ** torch.arange(5, -1, -1)).sum(1), minlength=64).double() / batch_size


@pytest.mark.slow
def test_samples_follow_the_target_distribution_across_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = tiny.bark(coarse_ids=24), 4_000
    torch.manual_seed(0)
    own = sampled(model, rows)
    floor, spread = noise_floor(own, rows)
    limit = 1.5 * floor + 6 * spread  # both sides are samples
    ours: dict[str, Any] = {"custom_generate": mmspec.generate, "seed": 5}
    assert float((sampled(model, rows, recipe="scd:window=2,start=left", **ours) - own).abs().sum() / 2) < limit
    # With the same random numbers in every window, independent tokens would be correlated.
    monkeypatch.setattr("mmspec.audio.models.bark.decoding.zlib", SimpleNamespace(crc32=lambda content: 0))
    assert float((sampled(model, rows, recipe="plain", **ours) - own).abs().sum() / 2) > 2 * limit


def test_errors() -> None:
    with pytest.raises(ArgumentError, match="max_new_tokens=40 is not allowed"):
        semantic(tiny.bark(), custom_generate=mmspec.generate, max_new_tokens=40)
