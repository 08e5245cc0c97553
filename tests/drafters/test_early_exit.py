"""Early exit: the first layers agree with a smaller model, and do not change the results of the target."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny_llamagen
import torch
from batch_runs import run
from hf_image_cases import CASES, GUIDANCE, arguments, job_of, ours
from torch import Tensor, nn

from mmspec.decoding.layout import Layout
from mmspec.decoding.rows import select_rows
from mmspec.decoding.target import EarlyExit, SupportsEarlyExit, Target
from mmspec.drafters.early_exit import EarlyExitTarget
from mmspec.errors import ArgumentError
from mmspec.hf.causal_target import CausalTarget
from mmspec.hf.decoder_layers import count_layers
from mmspec.recipes import parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.tree import Tree
from mmspec.testing.adapters import check_samples
from mmspec.vision.llamagen.target import LlamaGenTarget

N = 16


def agree(target: SupportsEarlyExit, cut: Any, guided: bool, vocab_size: int) -> bool:
    """Whether an early exit after one layer agrees with a model of that layer, interleaved with full calls."""
    x, junk = torch.randint(vocab_size, (2, 2, N), generator=torch.Generator().manual_seed(1))
    wrong = 0

    def check(ours: Logits, theirs: Logits) -> None:
        nonlocal wrong
        assert (ours.uncond is not None) == guided
        for side, other in zip(ours, theirs, strict=True):
            if side is not None and other is not None:
                wrong += not torch.allclose(side, other, atol=1e-4)

    with torch.inference_mode():
        part = EarlyExitTarget(target, EarlyExit(1, guided))
        cut.prefill()
        target.prefill()
        assert part.prefill().cond.shape == (0, 0, vocab_size)
        tree = Tree(np.array([[0, 0, 1, 2]]), torch.device("cpu"))
        for at in ([0, 0], [3, 2], [5, 5]):
            place = np.array(at)
            window = torch.stack([x[row, n : n + 4] for row, n in enumerate(at)])
            target.forward(junk[:, :6], place)  # drafts that are all rejected
            check(part.forward(window[:, :3], place), cut.forward(window[:, :3], place))
            drafts = torch.cat([window[:, :1], junk[:, :4]], dim=1)
            target.forward(window, place)
            check(part.forward_tree(drafts, place, tree), cut.forward_tree(drafts, place, tree))
            target.forward(window, place)
            cut.forward(window, place)
        for each in (target, part, cut):
            select_rows(each, [1], 2)
        check(part.forward(x[1:, 9:11], np.array([9])), cut.forward(x[1:, 9:11], np.array([9])))
    return wrong == 0


def llamagen(layers: int | None = None) -> Callable[[], LlamaGenTarget]:
    torch.manual_seed(0)  # for the unconditional embedding
    gpt = tiny_llamagen.tiny(grid_size=4)
    condition = torch.randn(2, tiny_llamagen.T, tiny_llamagen.C, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, tiny_llamagen.T)
    mask[0, :2] = 0
    gpt.layers = gpt.layers[:layers]
    gpt.register_to_config(n_layer=len(gpt.layers))
    return lambda: LlamaGenTarget(gpt, condition, gpt.unconditional(2), mask, slack=24)


def unguided(cut: LlamaGenTarget) -> LlamaGenTarget:
    cut._guided, cut._condition = False, cut._condition[:2]
    select_rows(cut._cache, [0, 1], 4)
    assert cut._padding is not None
    cut._padding = cut._padding[:2]
    return cut


@pytest.mark.parametrize("guided", [False, True])
def test_llamagen(guided: bool) -> None:
    cut = llamagen(1)()
    assert agree(llamagen()(), cut if guided else unguided(cut), guided, tiny_llamagen.V)


@pytest.mark.parametrize(("name", "guided"), GUIDANCE)
def test_models_of_transformers(name: str, guided: bool) -> None:
    model = CASES[name].model()
    # The target is guided if it can be, even if the early exit is not.
    job = job_of(model, arguments(name, model, name != "glm"))
    backbone = job.plan.backbone
    small: Any = deepcopy(backbone.decoder)
    if isinstance(small, nn.Module):
        layers: Any = small.layers
        small.layers = layers[:1]
    else:
        small = small.only([0])
    plan = replace(job.plan, backbone=replace(backbone, decoder=small))
    cut = CausalTarget(plan.backbone, plan.cond, plan.uncond if guided else None, plan.length, 24)
    target = job.target(job.plan, 24)
    assert isinstance(target, SupportsEarlyExit) and agree(target, cut, guided, backbone.vocab_size)


RECIPES = [
    "layer-skip:layers=1,window=4", "layer-skip:layers=1,window=3,guidance=2", "tree:layers=1,branch=2/1",
    "tree-sampled:layers=1,window=6", "scd:window=6,start=model,layers=1",
]  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES)
def test_greedy_is_plain_greedy(recipe: str) -> None:
    layout, greedy = Layout(length=N, width=4), [SamplingParams(temperature=0, guidance_scale=2.0)] * 2
    plain, ours_ = (run(llamagen()(), parse(name), layout, greedy, [0, 1]) for name in ("plain", recipe))
    assert torch.equal(ours_.tokens, plain.tokens) and ours_.stats.draft_calls > 0


@pytest.mark.parametrize("name", ["janus", "emu3", "imagegpt"])
def test_transformers_greedy_is_plain_greedy(name: str) -> None:
    model = CASES[name].model()
    call = arguments(name, model, True) | {"do_sample": False}
    plain = ours(model, call, recipe="plain", seed=0)
    for recipe in RECIPES:
        assert torch.equal(ours(model, call, recipe=recipe, seed=0), plain), recipe


@pytest.mark.parametrize("recipe", ["layer-skip:layers=1,window=3", "scd:window=3,start=model,layers=1,guidance=2"])
def test_distribution(recipe: str) -> None:
    gpt = tiny_llamagen.tiny(vocab_size=3, grid_size=2, spread=0.3)
    condition = torch.randn(1, tiny_llamagen.T, tiny_llamagen.C, generator=torch.Generator().manual_seed(1))

    def make(batch_size: int, window: int) -> Target:
        same = condition.expand(batch_size, -1, -1)
        return LlamaGenTarget(gpt, same, gpt.unconditional(batch_size), None, slack=window)

    sampling = SamplingParams(temperature=1.2, top_p=0.9, guidance_scale=1.5)
    found = check_samples(make, Layout(4, 2), recipe, sampling, samples=10_000, seed=3)
    assert found.ok and found.tokens_per_call > 1, found


def test_targets_without_early_exit_are_refused() -> None:
    class Whole:
        vocab_size, device = 3, torch.device("cpu")

    with pytest.raises(ArgumentError, match="Whole has no early exit; use a draft model"):
        EarlyExitTarget(Whole(), EarlyExit(1, guided=False))
    hooked = CASES["emu3"].model().model.text_model
    assert count_layers(hooked) > 0
    hooked.forward = lambda x: x  # as accelerate replaces it
    assert count_layers(hooked) == 0 and count_layers(lambda embeds: embeds) == 0
    with pytest.raises(ArgumentError, match="sets layers, which requires start=model"):
        parse("scd:layers=2")


class Around(nn.Module):
    """A module around a decoder that has its attributes, as those of PEFT."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.base = decoder

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.base, name)

    def forward(self, **inputs: Any) -> Any:
        return self.base(**inputs)


def test_a_module_around_a_decoder_gives_states_but_exits_not_early() -> None:
    """Layers that are taken from it would not run, and states that are taken from them would be missing."""
    model = CASES["emu3"].model()
    found = list[Tensor]()
    for decoder in (model.model.text_model, Around(model.model.text_model)):
        job = job_of(model, arguments("emu3", model, True))
        target = job.target(job.plan, 3)
        assert isinstance(target, CausalTarget)
        target._backbone = replace(target.backbone, decoder=decoder)
        target.layers = count_layers(decoder)
        target.collect_layers((0, 1))
        with torch.no_grad():
            target.prefill()
        found.append(target.layer_features())
    assert target.layers == 0 and torch.equal(*found)


def test_an_early_exit_that_writes_the_wrong_slots_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = LlamaGenTarget.forward

    def shifted(self: LlamaGenTarget, tokens: Tensor, at: Any, early_exit: EarlyExit | None = None) -> Logits:
        return forward(self, tokens, at if early_exit is None else at + 1, early_exit)

    monkeypatch.setattr(LlamaGenTarget, "forward", shifted)
    assert not agree(llamagen()(), llamagen(1)(), True, tiny_llamagen.V)
