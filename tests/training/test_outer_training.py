"""Training of outer heads: restarts are exact, the head learns and drafts, and is refused where it does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_models
import tiny_processors
import torch
from batch_runs import run
from tiny_targets import causal, llamagen, one_by_one
from torch import Tensor
from trainable import PROMPTS, V, settings, tiny_pipe

from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.target import EarlyExit
from mmspec.errors import ArgumentError, ModelError
from mmspec.heads.checkpoint import load_head
from mmspec.hf.slot_cache import SlotCache
from mmspec.loading import add_drafter
from mmspec.methods.outer.head import OuterHead
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.testing.toys import ToyTarget
from mmspec.training.drafter_kind import HeadSizes
from mmspec.training.kinds import KINDS, check_loss
from mmspec.training.trainer import Trainer
from mmspec.vision.hf.pipeline import TransformersPipeline

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


@pytest.mark.parametrize("make", [llamagen, causal, one_by_one])
def test_the_targets_cache_stays_whole_with_a_head(make: Any) -> None:
    target = make(layers=4)
    with torch.inference_mode():
        target.prefill()
        dim = target.features().shape[-1]
    heads: Any = {"outer": random_head(target.vocab_size, dim)}
    chosen = [SamplingParams(temperature=0, guidance_scale=1.0 if make is one_by_one else 2.0)] * 2

    def greedy(recipe: str) -> Tensor:
        resources = DraftResources(heads=heads)
        return run(make(layers=4), parse(recipe), Layout(16, width=4), chosen, [1, 2], resources).tokens

    assert torch.equal(greedy(RECIPE), greedy("plain"))


def layers_of_cache(target: Any) -> list[Tensor]:
    cache = target._cache
    return cache.tensors() if isinstance(cache, SlotCache) else [cache.keys, cache.values]


@pytest.mark.parametrize("make", [llamagen, causal, one_by_one])
def test_a_window_is_read_again_with_gradients_and_without_a_trace(make: Any) -> None:
    target = make(layers=3)
    part = EarlyExit(3, True, skip=(1,), reuse=True)
    tokens, at = torch.tensor([[1, 2, 3], [3, 2, 1]]), torch.zeros(2).long().numpy()
    with torch.no_grad():
        target.prefill()
        target.collect_layers(part.gap)
        target.forward(tokens, at)
        states, kept = target.layer_features(), [stored.clone() for stored in layers_of_cache(target)]
    again = target.reread(tokens.flip(1), at, states.clone().requires_grad_(), part)
    assert again.cond.requires_grad and target.layer_features() is states
    assert all(torch.equal(one, other) for one, other in zip(layers_of_cache(target), kept, strict=True))
    with torch.no_grad():
        torch.testing.assert_close(again.cond.detach(), target.forward(tokens.flip(1), at, part).cond)


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


def janus() -> TransformersPipeline:
    return TransformersPipeline(tiny_models.janus(num_hidden_layers=4), tiny_processors.janus())


def imagegpt() -> TransformersPipeline:
    return TransformersPipeline(tiny_models.imagegpt(n_layer=4))


def imagegpt_with_a_processor() -> TransformersPipeline:
    pipe = imagegpt()
    pipe.model.generation_config.repetition_penalty = 1.3
    return pipe


@pytest.mark.parametrize("make", [janus, imagegpt, imagegpt_with_a_processor])
def test_a_head_is_trained_for_a_model_of_transformers(make: Any, tmp_path: Path) -> None:
    pipe: Any = make()
    pipe.set_progress_bar_config(disable=True)
    prompts = ("a red dog", "cat") if make is janus else ("",)
    chosen = settings("outer", loss="tvd", prompts=prompts, held_out=prompts, steps=3, depth=3, lr=1e-2)
    trainer, losses = Trainer(pipe, chosen, tmp_path), list[float]()
    before = [p.clone() for p in trainer.model.parameters()]
    trainer.train(trainer.collect(), 10, 10, on_step=lambda step, loss: losses.append(loss))
    assert len(losses) == 3 and 0 < min(losses) <= max(losses) < 1
    assert not all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    add_drafter(pipe, tmp_path)
    plain, out = (pipe(list(prompts), recipe=r, seed=0, temperature=0, output_type="latent") for r in ("plain", RECIPE))
    assert torch.equal(plain.tokens, out.tokens) and out.stats.draft_calls > 0


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="--kind outer is for models of 3 layers or more; this one has 2"):
        Trainer(tiny_pipe(), settings("outer"), tmp_path)
    with pytest.raises(ArgumentError, match="--kind outer is trained in one process; 2 were started"):
        Trainer(tiny_pipe(4), settings("outer"), tmp_path, 0, 2)
    with pytest.raises(ArgumentError, match="'lk' is for heads that draft a chain, which a head for outer layers"):
        check_loss(settings("outer", loss="lk"))
    with pytest.raises(ArgumentError, match="compares features, which differ"):
        check_loss(settings("outer", loss="smooth-l1+ce"))
    new: Any = KINDS["outer"].new
    other, sized = causal(layers=4), (Layout(16, width=4), 8, 16, 2, 100.0, 4)
    other.can_reuse_updates = False
    for target in (ToyTarget(1, 3, 3, 0), other):
        with pytest.raises(ArgumentError, match="'outer' can be trained for this model: .* rereads no windows"):
            new(HeadSizes(target, *sized), settings("outer"))
    random_head(V, 16).save_pretrained(tmp_path / "narrow")
    with pytest.raises(ModelError, match="has hidden_size 16, the model 32; the drafter is for another model"):
        add_drafter(tiny_pipe(4), tmp_path / "narrow")
    with pytest.raises(ArgumentError, match="num_attention_heads=3 must divide hidden_size=8"):
        OuterHead(5, 8, 16, 3)
