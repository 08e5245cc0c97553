"""What users may do with every embedded pipeline alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import mmspec
from mmspec.errors import ArgumentError
from mmspec.pipeline import move

PROMPTS = {
    "shapes": ["a red circle", "a green star", "a blue square"],
    "scenes": ["a red circle on a striped background"],
    "shapes-latent": ["a red circle"],
    "spoken": ["one", "two", "three"],
}


@pytest.fixture(scope="module", params=PROMPTS)
def named(request: pytest.FixtureRequest) -> tuple[str, Any]:
    return request.param, mmspec.load(request.param)


def test_a_pipeline_knows_where_it_is_and_moves(named: tuple[str, Any]) -> None:
    _, pipe = named
    assert pipe.device == torch.device("cpu") and pipe.dtype == torch.float32
    assert pipe.to("cpu") is pipe and pipe.to(torch.device("cpu")) is pipe


def test_a_pipeline_is_saved_or_says_why_not(named: tuple[str, Any], tmp_path: Path) -> None:
    name, pipe = named
    if not hasattr(pipe, "components"):
        with pytest.raises(ArgumentError, match="save_pretrained is not possible for a"):
            pipe.save_pretrained(tmp_path)
        return
    pipe.save_pretrained(tmp_path)
    assert mmspec.load(tmp_path).config.temperature == pipe.config.temperature, name


def test_a_configuration_is_read_by_key_and_by_attribute(named: tuple[str, Any]) -> None:
    name, pipe = named
    for key in ("temperature", "guidance_scale", "recipe"):
        assert pipe.config[key] == getattr(pipe.config, key)
    with pytest.raises(AttributeError):
        pipe.config.nosuch  # noqa: B018


def test_drafters_are_added_or_refused_in_one_line(named: tuple[str, Any], tmp_path: Path) -> None:
    _, pipe = named
    with pytest.raises(mmspec.errors.MMSpecError) as error:
        mmspec.loading.add_drafter(pipe, tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["shapes", "spoken"])
def test_a_batch_size_does_not_change_the_output(name: str) -> None:
    pipe, prompts = mmspec.load(name), PROMPTS[name]
    whole, small = (pipe(prompts, seed=0, recipe="scd:window=32", batch_size=size) for size in (3, 2))
    if name == "shapes":
        assert torch.equal(whole.tokens, small.tokens) and len(small.stats.rows) == 3
        assert whole.stats.tokens == small.stats.tokens
    else:
        assert all(torch.equal(a.tokens[0], b.tokens[0]) for a, b in zip(whole, small, strict=True))
    with pytest.raises(ArgumentError, match="batch_size=0 is not allowed"):
        pipe(prompts, batch_size=0)


@pytest.mark.parametrize(("size", "at"), [(2, 2), (1, 30)])
def test_an_interrupted_call_counts_what_it_has_and_no_more(size: int, at: int) -> None:
    """In the first batch and in a later one; batches that did not begin have rows without tokens."""
    pipe, seen = mmspec.load("shapes"), 0

    def stop(pipe: Any, calls: int, tokens: int, tensors: Any) -> None:
        nonlocal seen
        seen += 1
        pipe._interrupt = seen == at

    out = pipe(PROMPTS["shapes"], seed=0, batch_size=size, callback_on_step_end=stop, output_type="latent")
    made = (out.tokens >= 0).sum(1).tolist()
    assert len(made) == 3 and made[size - 1] and made[2] == 0
    assert [row.tokens for row in out.stats.rows] == made and out.stats.tokens == sum(made)
    assert out.stats.target_calls == at
    assert out.stats.tokens_per_call == sum(made) / sum(row.calls for row in out.stats.rows)


@pytest.mark.parametrize("name", PROMPTS)
def test_all_weights_move(name: str) -> None:
    pipe = mmspec.load(name)
    move(pipe, torch.device("meta"))
    assert pipe.device.type == "meta"
    for device in ("nosuch", 3, torch.float16):
        with pytest.raises(ArgumentError, match="^device="):
            pipe.to(device)
