"""The GPT-2 of XTTS-v2 in `generate`, against codes and probabilities of the package coqui-tts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_xtts import CODES, SETTINGS, START, STOP, Gpt, prompts
from torch import Tensor
from two_samples import chi_square

import mmspec
from mmspec.audio.models.xtts import decoding
from mmspec.errors import ArgumentError

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "xtts.json").read_text())
OURS: dict[str, Any] = {"custom_generate": mmspec.generate, "seed": 0}


@pytest.mark.releases
@pytest.mark.parametrize("recipe", ["plain", "scd:window=4", "recycle:window=3", "layer-skip:layers=1"])
def test_greedy_codes_are_the_packages(recipe: str) -> None:
    """Three voices and texts in a batch, with the repetition penalty of 10, which counts the ids of the prompt."""
    out = Gpt().generate(*prompts(), do_sample=False, recipe=recipe, **SETTINGS, **OURS)
    assert out.tolist() == GOLDEN["greedy"]


def ending() -> Gpt:
    """A model that ends some of its rows early."""
    gpt: Any = Gpt()
    with torch.no_grad():
        gpt.gpt_inference.lm_head[1].bias[STOP] += 1.2
    return gpt


@pytest.mark.parametrize("recipe", ["scd:window=4", "recycle:window=3"])
def test_rows_that_end_early(recipe: str) -> None:
    voices, texts = prompts(6)
    own = ending().generate(voices, texts, do_sample=False, **SETTINGS)
    lengths = (own != STOP).sum(1)
    assert lengths.min() < own.shape[1] - 1 and len(lengths.unique()) > 1
    assert torch.equal(ending().generate(voices, texts, do_sample=False, recipe=recipe, **OURS, **SETTINGS), own)


def samples(rows: int, **how: Any) -> Tensor:
    voices, texts = prompts(1)
    settings = {**SETTINGS, **GOLDEN["sampling"], "num_return_sequences": rows}
    torch.manual_seed(0)
    return Gpt().generate(voices, texts, max_new_tokens=3, **settings, **how)


@pytest.mark.filterwarnings("ignore:.*max_new_tokens.*")
def test_samples_follow_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """4,000 samples: their first codes have the recorded probabilities, and all codes are distributed as its own.

    A twin whose codes are one position late must be told apart.
    """
    own, ours = samples(4_000), samples(4_000, **OURS, recipe="scd:window=3")
    for column, recorded in zip(ours.unbind(1)[:1], GOLDEN["probs"][:1], strict=True):
        counts = torch.bincount(column, minlength=CODES + 2)
        assert set(counts.nonzero()[:, 0].tolist()) == {int(code) for code in recorded}
        for code, p in recorded.items():
            assert abs(int(counts[int(code)]) - 4_000 * p) < 5 * (4_000 * p * (1 - p)) ** 0.5
    base = torch.tensor([529, 23, 1])
    found, limit = chi_square((own * base).sum(1), (ours * base).sum(1))
    assert found < limit
    real = decoding.with_positions
    monkeypatch.setattr(decoding, "with_positions", lambda gpt, table: real(gpt, torch.roll(table, -1, 0)))
    found, limit = chi_square((own * base).sum(1), (samples(4_000, **OURS, recipe="scd:window=3") * base).sum(1))
    assert found > 1.5 * limit


def test_errors_and_the_shared_decoder() -> None:
    gpt = Gpt()
    inner: Any = gpt.gpt_inference
    ids = torch.tensor([[1, 1, START]])
    with pytest.raises(ArgumentError, match=r"input_ids has shape \[1, 3\], the prompt that the model keeps none"):
        inner.generate(ids, max_new_tokens=2, eos_token_id=STOP, pad_token_id=STOP, **OURS)
    other: Any = Gpt().gpt_inference
    del other.pos_embedding
    with pytest.raises(ArgumentError, match=r"is not that of coqui-tts 0\.28 or later"):
        other.generate(ids, max_new_tokens=2, eos_token_id=STOP, pad_token_id=STOP, **OURS)
    before = inner.transformer.wpe
    gpt.generate(*prompts(), do_sample=False, **SETTINGS, **OURS)
    assert inner.transformer.wpe is before  # the package's own calls go on as before
    with pytest.raises(ArgumentError, match="max_new_tokens=19 is not allowed; the model has 18 positions"):
        gpt.generate(*prompts(), do_sample=False, max_new_tokens=19, **SETTINGS, **OURS)
    with pytest.raises(ArgumentError, match="num_beams"):
        gpt.generate(*prompts(), **{**SETTINGS, "num_beams": 3}, **OURS)
