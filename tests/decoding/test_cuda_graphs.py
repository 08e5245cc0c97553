"""Targets with captured calls: the same logits, features and tokens as in eager mode.

On a CPU the calls run eagerly through the same buffers; `pytest -m gpu` runs the same tests with CUDA graphs.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from batch_runs import run
from batch_states import batch_states

from mmspec.decoding import cuda_graphs, graph_capture, kept_graphs
from mmspec.decoding.cuda_graphs import Capturable, CUDAGraphTarget
from mmspec.decoding.kept_graphs import KeptGraphs
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.rows import join_rows, select_rows
from mmspec.decoding.target import EarlyExit
from mmspec.errors import ArgumentError
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams

RECIPES = ["plain", "scd:window=5", "draft:window=3", "tree:layers=1,branch=2/1", "layer-skip:layers=1,window=3"]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The device of the targets; captured calls are used on the CPU as well."""
    monkeypatch.setattr(cuda_graphs, "_STEP", 8)
    return torch.device(request.param)


def agree(plain: Capturable, ours: CUDAGraphTarget, vocab_size: int) -> None:
    """Compares windows of several widths and cache lengths, with rows that diverge and rows that finish."""
    first, device = plain.prefill(), plain.device
    assert torch.allclose(ours.prefill().cond, first.cond, atol=1e-5)
    tokens = torch.randint(vocab_size, (3, 40), generator=torch.Generator().manual_seed(1)).to(device)
    earlier, calls = [], ours._graphs._calls

    def check(row_ids: list[int], at: list[int], width: int) -> None:
        window = torch.stack([tokens[row, start : start + width] for row, start in zip(row_ids, at, strict=True)])
        for part in (EarlyExit(1, guided=False), EarlyExit(1, guided=True)):
            theirs, own = (target.forward(window, np.array(at), part).cond for target in (plain, ours))
            assert torch.allclose(own, theirs, atol=1e-4)
            assert torch.allclose(ours.exit_features(), plain.exit_features(), atol=1e-4)
        wanted, got = (target.forward(window, np.array(at)) for target in (plain, ours))
        for one, other in zip(wanted, got, strict=True):
            if one is not None and other is not None:
                assert torch.allclose(other, one, atol=1e-4)
                earlier.append((other, other.clone()))
        assert torch.allclose(ours.features(), plain.features(), atol=1e-4)

    for at, width in (([0, 0, 0], 1), ([1, 1, 1], 4), ([4, 2, 3], 3), ([5, 5, 4], 4), ([9, 5, 7], 2)):
        check([0, 1, 2], at, width)
    assert {width for width, *_ in calls} == {1, 4, 2} and {part is None for *_, part in calls} == {
        True,
        False,
    }  # the window of 3 used the call of 4
    for rows, kept, at in (([0, 2], [0, 2], [9, 8]), ([1], [2], [10])):
        for target in (plain, ours):
            select_rows(target, rows, 3 if len(rows) == 2 else 2)
        assert torch.allclose(ours.features(), plain.features(), atol=1e-4)
        check(kept, at, 4)
    assert all(torch.equal(*pair) for pair in earlier)  # no call overwrites the output of an earlier one


def llamagen(device: torch.device, layers: int = 2) -> Any:
    gpt = pytest.importorskip("mmspec.vision.llamagen.gpt", reason="diffusers is not installed").LlamaGenGPT
    torch.manual_seed(layers)
    size = {"vocab_size": 50, "dim": 32, "n_layer": layers, "n_head": 2, "num_classes": 5, "grid_size": 4}
    return gpt(**size, ffn_dim=32).to(device).eval()


def llamagen_target(gpt: Any, device: torch.device, batch_size: int = 3, guided: bool = True) -> Any:
    from mmspec.vision.llamagen.target import LlamaGenTarget

    return LlamaGenTarget(
        gpt, torch.arange(batch_size, device=device), gpt.unconditional(batch_size) if guided else None, None, 8
    )


def test_llamagen_agrees_with_eager_mode(device: torch.device) -> None:
    gpt = llamagen(device)
    with torch.inference_mode():
        agree(llamagen_target(gpt, device), CUDAGraphTarget(llamagen_target(gpt, device)), 50)


def llama_target(device: torch.device) -> Any:
    """A Llama of transformers with prompts of three lengths and unconditional rows."""
    transformers = pytest.importorskip("transformers")
    from mmspec.hf.causal_target import Backbone, CausalTarget, Prompt
    from mmspec.hf.plan import position_ids_of

    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**size, num_key_value_heads=2, vocab_size=50, pad_token_id=0)
    model = transformers.LlamaForCausalLM(config).to(device).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(5 if p.dim() == 2 else 1)  # so that tokens matter
    ids = torch.arange(18, device=device).view(3, 6)
    mask = torch.arange(6, device=device) >= torch.tensor([[0], [2], [3]], device=device)
    embed = model.get_input_embeddings()
    cond, uncond = (Prompt(embed(side).detach(), mask, position_ids_of(mask)) for side in (ids, ids * 0 + 7))
    return CausalTarget(Backbone(model.model, embed, model.lm_head, 50, device), cond, uncond, 16, 8)


def test_models_of_transformers_agree_with_eager_mode(device: torch.device) -> None:
    with torch.inference_mode():
        agree(llama_target(device), CUDAGraphTarget(llama_target(device)), 50)


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_give_the_tokens_of_eager_mode(recipe: str, device: torch.device) -> None:
    gpt, small = llamagen(device), llamagen(device, 1)
    samplings = [SamplingParams(temperature=0, guidance_scale=2.0)] * 3
    found = []
    for make in (lambda target: target, CUDAGraphTarget):
        resources = DraftResources(draft_model=lambda make=make: make(llamagen_target(small, device, 3, False)))  # type: ignore[misc]
        target = make(llamagen_target(gpt, device))
        found.append(run(target, parse(recipe), Layout(16, 4), samplings, [0, 1, 2], resources))
    assert torch.equal(found[0].tokens, found[1].tokens) and found[0].stats.target_calls == found[1].stats.target_calls


def test_generate_gives_the_tokens_of_eager_mode(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = pytest.importorskip("transformers").GenerationMixin.generate
    import tiny_models

    import mmspec
    from mmspec.hf import causal_target as target

    made: list[CUDAGraphTarget] = []

    def capture(*given: Any) -> CUDAGraphTarget:
        made.append(CUDAGraphTarget(*given))
        return made[-1]

    model = tiny_models.janus().to(device)
    ids = torch.tensor([[1, 7, 8, 3], [0, 1, 9, 3]], device=device)
    call = {"input_ids": ids, "attention_mask": (ids > 0).long(), "do_sample": False, "guidance_scale": 2}
    call |= {"custom_generate": mmspec.generate, "recipe": "scd:window=4", "max_new_tokens": 16}
    monkeypatch.setattr(target, "use_cuda_graphs", lambda device: False)
    wanted = generate(model, **call)
    monkeypatch.setattr(target, "use_cuda_graphs", lambda device: True)
    monkeypatch.setattr(kept_graphs, "CUDAGraphTarget", capture)
    assert torch.equal(generate(model, **call), wanted)
    assert made and made[0]._graphs._calls


def test_the_prefill_is_that_of_the_rows_that_are_left(device: torch.device) -> None:
    plain, ours = llama_target(device), CUDAGraphTarget(llama_target(device))
    for target in (plain, ours):
        select_rows(target, [2, 0], 3)
    for one, other in zip(plain.prefill(), ours.prefill(), strict=True):
        assert one is not None and other is not None and torch.allclose(one, other, atol=1e-5)
    assert torch.allclose(plain.features(), ours.features(), atol=1e-5)
    window, at = torch.tensor([[3, 4], [5, 6]], device=device), np.array([0, 0])
    assert torch.allclose(plain.forward(window, at).cond, ours.forward(window, at).cond, atol=1e-4)


def test_images_reuse_the_graphs_of_earlier_ones(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    gpt = llamagen(device)
    from mmspec.vision.llamagen import target as llamagen_target
    from mmspec.vision.llamagen.pipeline import LlamaGenPipeline

    pipe = LlamaGenPipeline(gpt)
    pipe.set_progress_bar_config(disable=True)

    def tokens(label: int, recipe: str = "scd:window=4") -> torch.Tensor:
        settings: dict[str, Any] = {"guidance_scale": 2.0, "temperature": 0.0, "output_type": "latent"}
        gc.collect()
        return pipe(class_labels=label, recipe=recipe, seed=0, **settings).tokens

    monkeypatch.setattr(llamagen_target, "use_cuda_graphs", lambda device: False)
    wanted = [tokens(label) for label in (1, 2)]
    assert not torch.equal(*wanted) and not len(KeptGraphs.of(gpt))
    monkeypatch.setattr(llamagen_target, "use_cuda_graphs", lambda device: True)
    found = [tokens(label) for label in (1, 2)]
    (kept,) = KeptGraphs.of(gpt)._free
    count = len(kept.graphs._calls)
    assert count and torch.equal(tokens(1), wanted[0]) and len(kept.graphs._calls) == count
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, wanted, strict=True))
    gpt.norm.weight.data = gpt.norm.weight.data.clone()  # moved: graphs would read the old address
    tokens(1)
    assert [old is kept for old in KeptGraphs.of(gpt)._free] == [False]


@pytest.mark.parametrize("recipe", ["plain", "scd:window=3"])
def test_blocks_of_tokens_are_captured(recipe: str, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block is one token of a window; later images replay the calls of the first."""
    from mmspec.vision.llamagen import target as llamagen_target
    from mmspec.vision.llamagen.blocks import BlockTransformer

    torch.manual_seed(0)
    gpt = BlockTransformer((2, 2), grid_size=4, vocab_size=9, dim=32, n_layer=2, n_head=2, num_classes=5).to(device)
    labels, uncond = torch.tensor([1, 3], device=device), gpt.eval().unconditional(2)

    def tokens(graphs: bool) -> torch.Tensor:
        monkeypatch.setattr(llamagen_target, "use_cuda_graphs", lambda device: graphs)
        with torch.no_grad():
            target = llamagen_target.new_target(gpt, labels, uncond, None, 4)
        assert isinstance(target, CUDAGraphTarget) == graphs
        params = [SamplingParams(guidance_scale=2.0)] * 2
        found = run(target, parse(recipe), Layout(16, 4, cell=(4,)), params, [0, 1]).tokens
        del target
        gc.collect()
        return found

    wanted, found = tokens(False), tokens(True)
    (kept,) = KeptGraphs.of(gpt)._free
    count = len(kept.graphs._calls)
    assert count and torch.equal(found, wanted) and torch.equal(tokens(True), wanted)
    assert len(kept.graphs._calls) == count


def test_rows_with_another_padding_join_only_new_graphs(device: torch.device) -> None:
    """Graphs that were captured without a mask of the captions would never read that of a row that joins."""
    from mmspec.vision.llamagen.target import LlamaGenTarget

    gpt = llamagen(device)

    def target(mask: torch.Tensor | None) -> CUDAGraphTarget:
        found = CUDAGraphTarget(LlamaGenTarget(gpt, torch.arange(2, device=device), None, mask, 8))
        found.prefill()
        found.forward(torch.ones(2, 2, dtype=torch.int64, device=device), np.array([0, 0]))
        return found

    padded = torch.tensor([[True], [False]], device=device)
    with torch.inference_mode():
        for mask, new in ((None, True), (padded, False)):
            ours, ids = target(mask), [0, 1]
            graphs = ours._graphs
            assert graphs.has_calls
            join_rows(ours, target(padded), ids, *batch_states(2, 2))
            assert (ours._graphs is not graphs) == new


def test_the_variable_that_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    monkeypatch.delenv("MMSPEC_CUDA_GRAPHS", raising=False)
    assert graph_capture.use_cuda_graphs(cuda) and not graph_capture.use_cuda_graphs(cpu)
    monkeypatch.setenv("MMSPEC_CUDA_GRAPHS", "off")
    assert not graph_capture.use_cuda_graphs(cuda)
    monkeypatch.setenv("MMSPEC_CUDA_GRAPHS", "no")
    with pytest.raises(ArgumentError, match="MMSPEC_CUDA_GRAPHS='no' is not allowed; it must be off, or unset"):
        graph_capture.use_cuda_graphs(cpu)
