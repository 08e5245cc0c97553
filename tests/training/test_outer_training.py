"""Training of outer heads: restarts are exact, the head learns and drafts, and is refused where it does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_targets import causal, llamagen
from torch import Tensor
from trainable import PROMPTS, V, settings, tiny_pipe

from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.target import EarlyExit
from mmspec.engine import run
from mmspec.errors import ArgumentError, ModelError
from mmspec.heads.checkpoint import load_head
from mmspec.heads.outer import OuterHead
from mmspec.loading import add_drafter
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.training.kinds import KINDS, HeadSizes
from mmspec.training.trainer import Trainer

RECIPE = "scd:window=4,refresh=outer,passes=2"


class Killed(Exception):
    pass


def random_head(vocab_size: int, dim: int) -> OuterHead:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        head = OuterHead(vocab_size, dim, 24, 2)
        for p in head.parameters():
            torch.nn.init.normal_(p, std=0.3)
    return head.eval()


def test_slots_before_the_first_change_keep_their_states() -> None:
    head = random_head(5, 8)
    before, after = torch.randn(2, 3, 6, 8, generator=torch.Generator().manual_seed(0)).unbind()
    new = before.clone()
    assert torch.equal(head(new, before, after), after)
    new[:, 3] += 1
    changed = head(new, before, after) != after
    assert not changed[:, :3].any() and changed[:, 3:].any(-1).all()


@pytest.mark.parametrize("make", [llamagen, causal])
def test_the_targets_cache_stays_whole_with_a_head(make: Any) -> None:
    target = make(layers=4)
    with torch.inference_mode():
        target.prefill()
        dim = target.features().shape[-1]
    heads: Any = {"outer": random_head(target.vocab_size, dim)}
    chosen = [SamplingParams(temperature=0, guidance_scale=2.0)] * 2

    def greedy(recipe: str) -> Tensor:
        resources = DraftResources(heads=heads)
        return run(make(layers=4), parse(recipe), Layout(16, width=4), chosen, [1, 2], resources).tokens

    assert torch.equal(greedy(RECIPE), greedy("plain"))


def test_a_window_is_read_again_with_gradients_and_without_a_trace() -> None:
    target = llamagen(layers=3)
    part = EarlyExit(3, True, skip=(1,), reuse=True)
    tokens, at = torch.tensor([[1, 2, 3], [3, 2, 1]]), torch.zeros(2).long().numpy()
    with torch.no_grad():
        target.prefill()
        target.collect_layers(part.gap)
        target.forward(tokens, at)
        keys: Any = target._cache.keys
        states, kept = target.layer_features(), keys.clone()
    again = target.reread(tokens.flip(1), at, states.clone().requires_grad_(), part)
    assert again.cond.requires_grad and torch.equal(keys, kept) and target.layer_features() is states


def test_a_trained_head_loads_drafts_and_restarts(tmp_path: Path) -> None:
    pipe, chosen = tiny_pipe(layers=4), settings("outer", loss="tvd", steps=8, depth=3, lr=1e-2)

    def train(folder: Path, until: int) -> list[float]:
        losses: list[float] = []

        def on_step(step: int, loss: float) -> None:
            losses.append(loss)
            if step == until:
                raise Killed

        folder.mkdir(exist_ok=True)
        trainer = Trainer(pipe, chosen, folder)
        trainer.train(trainer.collect(), validate_every=8, save_every=2, on_step=on_step)
        return losses

    losses = train(tmp_path / "whole", 0)
    assert sum(losses[-3:]) < sum(losses[:3])
    assert all(p.grad is None for p in pipe.transformer.parameters())
    with pytest.raises(Killed):
        train(tmp_path / "killed", 5)
    assert train(tmp_path / "killed", 0) == losses[4:]
    whole, killed = (load_head(tmp_path / name) for name in ("whole", "killed"))
    assert isinstance(whole, OuterHead)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), killed.parameters(), strict=True))
    add_drafter(pipe, tmp_path / "whole")
    plain, out = (pipe(list(PROMPTS), recipe=r, seed=0, temperature=0, output_type="latent") for r in ("plain", RECIPE))
    assert torch.equal(plain.tokens, out.tokens) and out.stats.draft_calls > 0


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="--kind outer is for models of 3 layers or more; this one has 2"):
        Trainer(tiny_pipe(), settings("outer"), tmp_path)
    with pytest.raises(ArgumentError, match="--kind outer is trained in one process; 2 were started"):
        Trainer(tiny_pipe(4), settings("outer"), tmp_path, 0, 2)
    with pytest.raises(ArgumentError, match="'lk' is for heads that draft a chain, which an outer head does not"):
        settings("outer", loss="lk")
    with pytest.raises(ArgumentError, match="compares features, which differ"):
        settings("outer", loss="smooth-l1+ce")
    new: Any = KINDS["outer"].new
    sizes = HeadSizes(causal(layers=4), Layout(16, width=4), 8, 16, 2, 100.0, 4)
    with pytest.raises(ArgumentError, match="'outer' can be trained for this model: .* rereads no windows"):
        new(sizes, settings("outer"))
    random_head(V, 16).save_pretrained(tmp_path / "narrow")
    with pytest.raises(ModelError, match="has hidden_size 16, the model 32; the drafter is for another model"):
        add_drafter(tiny_pipe(4), tmp_path / "narrow")
    with pytest.raises(ArgumentError, match="num_attention_heads=3 must divide hidden_size=8"):
        OuterHead(5, 8, 16, 3)
