"""Drafters that read states of several layers, and early exits that read them, with captured calls.

A CPU has no graphs: `recorded_calls` records the operators of a call and replays them on the same memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import tiny_llamagen
import torch
from batch_runs import run
from fake_targets import problems, traced_reads
from recorded_calls import Recordings, recorded_graphs
from tiny_targets import causal, llamagen
from torch import Tensor, nn

from mmspec.decoding.captured_calls import GraphCache
from mmspec.decoding.cuda_graphs import CUDAGraphTarget
from mmspec.decoding.kept_graphs import KeptGraphs
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.rows import select_rows
from mmspec.decoding.target import EarlyExit, LayerRun
from mmspec.heads.eagle3 import Eagle3Head
from mmspec.hf.causal_target import Backbone, CausalTarget, Prompt, with_cuda_graphs
from mmspec.methods.block.head import BlockHead
from mmspec.methods.outer.head import OuterHead
from mmspec.recipes import parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.vision.llamagen.target import new_target

SIDE, LAYERS, D, V, ENDS = 5, 4, 32, tiny_llamagen.V, (3, 9)
OUTER = "scd:window=5,refresh=outer"
RECIPES = [OUTER, f"{OUTER},passes=2", f"{OUTER},layers=3", "eagle:window=4", "block:window=4"]
Make = Callable[[int], Any]


@pytest.fixture
def recordings() -> Iterator[Recordings]:
    with recorded_graphs() as found:
        yield found


def vision() -> tuple[Make, Any]:
    """Targets by number of the call, of one LlamaGen, and the module that its graphs live with."""
    torch.manual_seed(0)
    gpt = tiny_llamagen.tiny(grid_size=SIDE, n_layer=LAYERS)

    def make(number: int) -> Any:
        captions = torch.randn(4, tiny_llamagen.T, tiny_llamagen.C, generator=torch.Generator().manual_seed(number))
        return new_target(gpt, captions, gpt.unconditional(4), None, 8)

    return make, gpt


def language() -> tuple[Make, Any]:
    """The same of a Llama of transformers, whose prompts have paddings of their own."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    size = {"hidden_size": D, "intermediate_size": 64, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**size, vocab_size=V, pad_token_id=0)).eval()
    for p in model.parameters():
        p.data *= 6 if p.dim() == 2 else 1  # so that tokens matter
    embed = model.get_input_embeddings()

    def make(number: int) -> Any:
        mask = torch.arange(6) >= torch.tensor([[number], [1], [0], [2]])
        prompts = list[Prompt]()
        for seed in (number, 7):
            ids = torch.randint(V, (4, 6), generator=torch.Generator().manual_seed(seed))
            positions = (mask.long().cumsum(1) - 1).clamp(min=0)[None]
            prompts.append(Prompt(embed(ids).detach(), mask, positions))
        backbone = Backbone(model.model, embed, model.lm_head, V, torch.device("cpu"))
        return with_cuda_graphs(CausalTarget(backbone, prompts[0], prompts[1], SIDE**2, 8))

    return make, model.model


MODELS = {"llamagen": vision, "llama": language}


def heads(outer: bool = False) -> dict[str, Any]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        found: dict[str, Any] = {
            "eagle": Eagle3Head(V, D, 48, 4, 2, layer_ids=(0, 2, LAYERS)),
            "block": BlockHead(V, D, 48, 2, num_key_value_heads=1, layer_ids=(1, 3), block_size=4),
        }
        if outer:
            found["outer"] = OuterHead(V, D, 48, 2)
        for head in found.values():
            for p in head.parameters():
                torch.nn.init.normal_(p, std=0.4)
            head.eval()
    return found


def move(head: nn.Module) -> None:
    """Gives a head other weights, which are elsewhere."""
    for module in head.modules():
        for name, p in module._parameters.items():
            module._parameters[name] = None if p is None else nn.Parameter(p.data * -1.5)


@torch.inference_mode()
def tokens(make: Make, number: int, recipe: str, given: dict[str, Any] | None = None, ends: bool = True) -> Tensor:
    """Of rows that end at their own pace."""
    params = [SamplingParams(1.4, guidance_scale=1.5)] * 4
    layout = Layout(SIDE**2, SIDE, eos=frozenset(ENDS) if ends else frozenset())
    resources = DraftResources(heads=heads() if given is None else given)
    target = make(number)
    found = run(target, parse(recipe), layout, params, [number, 11, 12, 13], resources).tokens
    del target
    gc.collect()
    return found


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_tokens_are_those_of_eager_calls(name: str, recipe: str, recordings: Recordings) -> None:
    """Later calls, with other prompts, capture nothing; a plain call in between replays calls of the same set."""
    make, module = MODELS[name]()
    wanted = [recordings.eager(partial(tokens, make, number, recipe)) for number in range(3)]
    plain = recordings.eager(partial(tokens, make, 1, "plain"))
    assert not recordings.count and not torch.equal(wanted[0], wanted[1]), "a weak test"
    ends = torch.isin(wanted[0], torch.tensor(ENDS)).int().cummax(1).values.sum(1)
    assert len(ends.unique()) > 2, f"a weak test: rows end at {ends}"
    counts = [0]
    for number in (0, 1, 2, 0, 1, 2):
        assert torch.equal(tokens(make, number, recipe), wanted[number]), number
        counts.append(recordings.count)
    assert counts[1] and counts[3] <= counts[1] + 2 and counts[3] == counts[-1], counts
    assert torch.equal(tokens(make, 1, "plain"), plain)
    count = recordings.count
    assert torch.equal(tokens(make, 1, recipe), wanted[1]) and recordings.count == count
    (kept,) = KeptGraphs.of(module)._free
    kinds = {(part is not None, bool(layers)) for _, _, layers, part in kept.graphs._calls}
    assert kinds == {(False, False), (False, True), *([(True, True)] if "outer" in recipe else [])}


def broken_calls(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """Lets captured calls leave states of the call before, or put those of another layer in their place."""
    keep, begin = LayerRun.keep, LayerRun.__init__

    def init(layers: Any, early_exit: Any, collected: Any = (), states: Any = None) -> None:
        begin(layers, early_exit, collected, states)
        layers.given = states is not None

    def kept(layers: Any, count: int, h: Tensor) -> None:
        if not layers.given:
            keep(layers, count, h)
        elif broken == "another layer" and count + 1 <= LAYERS:
            keep(layers, count + 1, h)

    features, before = CUDAGraphTarget.layer_features, list[Tensor]()

    def late(target: CUDAGraphTarget) -> Tensor:
        before.append(features(target))
        return before[-2 if len(before) > 1 and before[-2].shape == before[-1].shape else -1]

    if broken == "the call before":
        monkeypatch.setattr(CUDAGraphTarget, "layer_features", late)
    else:
        monkeypatch.setattr(LayerRun, "__init__", init)
        monkeypatch.setattr(LayerRun, "keep", kept)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("recipe", "broken"),
    [
        (OUTER, "nothing"), (OUTER, "another layer"), ("eagle:window=4", "another layer"),
        ("eagle:window=4", "the call before"), ("block:window=4", "nothing"), ("block:window=4", "the call before"),
    ],
)  # fmt: skip
def test_wrong_states_give_other_tokens(
    name: str, recipe: str, broken: str, recordings: Recordings, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, _ = MODELS[name]()
    wanted = [tokens(make, number, recipe, ends=False) for number in range(2)]
    broken_calls(monkeypatch, broken)
    make, _ = MODELS[name]()
    found = [tokens(make, number, recipe, ends=False) for number in range(2)]
    assert not all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("name", MODELS)
def test_a_head_is_a_part_of_the_captured_passes(name: str, recordings: Recordings) -> None:
    """Weights that are changed in place are read where they are; weights that move are captured anew."""
    make, _ = MODELS[name]()
    given = heads(outer=True)
    decode = partial(tokens, make, 0, OUTER, given)
    wanted, without = recordings.eager(decode), recordings.eager(lambda: tokens(make, 0, OUTER))
    assert not torch.equal(wanted, without), "a weak test"
    assert torch.equal(decode(), wanted)
    count = recordings.count
    assert torch.equal(decode(), wanted) and recordings.count == count
    move(given["outer"])
    changed = recordings.eager(decode)
    assert not torch.equal(changed, wanted) and torch.equal(decode(), changed) and recordings.count > count


@pytest.mark.parametrize("name", MODELS)
def test_graphs_that_keep_a_head_that_has_moved_give_other_tokens(
    name: str, recordings: Recordings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin of the test above."""
    make, _ = MODELS[name]()
    given = heads(outer=True)
    decode = partial(tokens, make, 0, OUTER, given)
    monkeypatch.setattr(GraphCache, "expect", lambda graphs, part: None)
    decode()
    move(given["outer"])
    assert not torch.equal(decode(), recordings.eager(decode))


@pytest.mark.parametrize("name", MODELS)
def test_a_part_that_cannot_be_captured_reads_the_states_of_captured_calls(
    name: str, recordings: Recordings, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, _ = MODELS[name]()
    wanted = recordings.eager(partial(tokens, make, 0, OUTER))
    call = GraphCache.call

    def refused(graphs: GraphCache, read: Any, *shape: Any) -> Any:
        return None if any(isinstance(one, EarlyExit) for one in shape) else call(graphs, read, *shape)

    monkeypatch.setattr(GraphCache, "call", refused)
    assert torch.equal(tokens(make, 0, OUTER), wanted) and recordings.count
    found = CUDAGraphTarget.layer_features
    monkeypatch.setattr(CUDAGraphTarget, "layer_features", lambda target: found(target).roll(1, 1))
    assert not torch.equal(tokens(make, 0, OUTER), wanted), "the twin: states of another slot"


@pytest.mark.parametrize("name", MODELS)
def test_a_window_is_read_again_after_rows_have_left(name: str, recordings: Recordings) -> None:
    """With gradients, which a captured call has not; the next pass then reads the states of the call before."""
    make, _ = MODELS[name]()
    part = EarlyExit(LAYERS, True, skip=(1, 2), reuse=True)
    rows, at = [0, 2, 3], np.array([0, 1, 0, 2])
    window = torch.randint(V, (4, 3), generator=torch.Generator().manual_seed(4))

    @torch.no_grad()
    def found(is_on: bool) -> list[Logits]:
        recordings.is_on = is_on
        target = make(0)
        target.collect_layers(part.gap)
        target.prefill()
        target.forward(window[:, :1], np.zeros(4, dtype=np.int64))
        target.forward(window, at)
        select_rows(target, rows, 4)
        again = window[rows].flip(1)
        with torch.enable_grad():
            states = target.layer_features().clone().requires_grad_()
            reread = target.reread(again, at[rows], states, part)
            reread.cond.sum().backward()
        assert states.grad is not None and states.grad.any()
        return [reread, target.forward(again, at[rows], part)]

    wanted = found(False)
    assert not recordings.count
    for one, other in zip(found(True), wanted, strict=True):
        for ours, theirs in zip(one, other, strict=True):
            assert ours is not None and theirs is not None and torch.allclose(ours, theirs, atol=1e-5)
    assert recordings.count


@pytest.mark.parametrize("make", [llamagen, causal])
@pytest.mark.parametrize("kernels", ["torch", "triton"])
def test_a_call_that_keeps_states_can_be_captured(
    make: Callable[..., Any], kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `tests/decoding/test_fake_device.py`: the whole model, and passes of its outer layers, with a head or not."""
    if kernels == "triton":
        pytest.importorskip("triton")
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("MMSPEC_KERNELS", kernels)
    target = make(layers=4)
    part = EarlyExit(4, True, skip=(1, 2), reuse=True)
    with torch.inference_mode():
        target.collect_layers(part.gap)
        target.prefill()
    like = target.layer_features()
    parts = [None, part, EarlyExit(4, True, skip=(1, 2), reuse=True, change=OuterHead(V, like.shape[-1] // 2, 48, 2))]
    for traced in traced_reads(target, (), parts, like):
        assert not problems([traced]) and traced.count
