"""Drafters that learn while their target generates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_models
import tiny_processors
import torch
from trainable import PROMPTS, settings, tiny_pipe

import mmspec
from mmspec.errors import ArgumentError, ModelError
from mmspec.training.kinds import evaluate_drafter, new_drafter
from mmspec.training.online import OnlineDistillation
from mmspec.training.sequences import generate as write_again


def pipe_with(kind: str, folder: Path) -> Any:
    """A pipeline with an untrained drafter."""
    pipe = tiny_pipe()
    new_drafter(pipe, settings(kind)).save_pretrained(folder)
    pipe.add_drafter(folder)
    return pipe


def generate(pipe: Any, recipe: str, seed: int) -> Any:
    return pipe(list(PROMPTS), recipe=recipe, seed=seed, output_type="latent").tokens


@pytest.mark.parametrize(("kind", "recipe"), [("medusa", "medusa:window=3"), ("small", "draft:window=3")])
def test_the_drafter_of_the_pipeline_learns(kind: str, recipe: str, tmp_path: Path) -> None:
    pipe = pipe_with(kind, tmp_path / "first")
    before = generate(pipe, recipe, 0)
    assert torch.equal(generate(pipe, recipe, 0), before), "nothing learns by itself"
    weights = []
    for turn in range(2):
        pipe = pipe_with(kind, tmp_path / "first")
        online = OnlineDistillation(pipe, kind, tmp_path / f"online-{turn}", lr=1e-2, every=4, depth=2)
        start = evaluate_drafter(pipe, online._model, settings(kind))
        for seed in range(6):
            online.observe(PROMPTS, generate(pipe, recipe, seed))
        assert len(online.losses) == 6 and sum(online.losses[-2:]) < sum(online.losses[:2])
        weights.append([w.detach().clone() for w in online._model.parameters()])
        end = evaluate_drafter(pipe, online._model, settings(kind))
        assert (end.by_position[0] or 0) > (start.by_position[0] or 0)
        if kind == "medusa":
            used = list(pipe.heads[kind].parameters())
            assert all(torch.equal(a, b) for a, b in zip(used, weights[-1], strict=True)), "the pipeline drafts with it"
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True)), "the same calls give the same weights"


@pytest.mark.parametrize("name", ["janus", "chameleon"])
def test_codes_of_images_are_learned_as_the_sequences_they_were(name: str, tmp_path: Path) -> None:
    """The codes of a Chameleon are not its ids, and its sequences have one token more."""
    pipe = mmspec.load(getattr(tiny_models, name)(), processor=getattr(tiny_processors, name)())
    pipe.set_progress_bar_config(disable=True)
    new_drafter(pipe, settings("medusa")).save_pretrained(tmp_path / "first")
    pipe.add_drafter(tmp_path / "first")
    prompts, online = ["a red dog", "cat"], OnlineDistillation(pipe, "medusa", tmp_path / "online", every=3)
    codes = pipe(prompts, recipe="scd", seed=[3, 4], output_type="latent").tokens
    online.observe(prompts, codes)
    sequences = write_again(pipe.prepare, prompts, [3, 4])
    assert torch.equal(torch.stack([row for _, row in online._latest]), sequences.cpu())
    assert (codes.shape == sequences.shape) == (name == "janus")
    online.observe(prompts[:1], codes[:1])
    assert len(online.losses) == 1 and (tmp_path / "online" / "config.json").is_file()
    with pytest.raises(ArgumentError, match=r"tokens has shape \[1, 9\]; images have 16 codes"):
        online.observe(prompts[:1], codes[:1, :9])


def test_refusals(tmp_path: Path) -> None:
    pipe = tiny_pipe()
    with pytest.raises(ArgumentError, match="kind='medusa' is not allowed; the pipeline must have a drafter"):
        OnlineDistillation(pipe, "medusa", tmp_path)
    with pytest.raises(ArgumentError, match="every=0, batch=8 is not allowed"):
        OnlineDistillation(pipe, "small", tmp_path, every=0)
    with pytest.raises(ArgumentError, match=r"tokens has shape \[1, 9\]; it must have a row for each of the prompts"):
        OnlineDistillation(pipe, "small", tmp_path).observe(PROMPTS, torch.zeros(1, 9))


def test_a_loss_that_is_no_number_leaves_the_drafter(tmp_path: Path) -> None:
    pipe = pipe_with("medusa", tmp_path / "first")
    online = OnlineDistillation(pipe, "medusa", tmp_path / "online", every=1, depth=2)
    with torch.no_grad():
        next(online._model.parameters()).fill_(float("nan"))
    used = [w.clone() for w in pipe.heads["medusa"].parameters()]
    tokens = generate(pipe, "plain", 0)
    with pytest.raises(ModelError, match="the loss of update 1 is nan; use a smaller lr"):
        online.observe(PROMPTS, tokens)
    assert not (tmp_path / "online").exists()
    assert all(torch.equal(a, b) for a, b in zip(used, pipe.heads["medusa"].parameters(), strict=True))
