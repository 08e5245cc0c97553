"""CUDA graphs that live with a model of transformers: later calls replay them, with their own numbers.

A CPU has no graphs. Here a captured call reads what the target read that it was captured for, as a graph would: its
weights, its cache and its tables.
"""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any
from weakref import finalize, ref

import numpy as np
import pytest
import torch
from captures import Captures
from torch import Tensor, nn

from mmspec.decoding import captured_calls
from mmspec.decoding.kept_graphs import KeptGraphs, _drop_with_weights, _Kept, free_graphs, parts_of
from mmspec.decoding.rows import select_rows
from mmspec.decoding.target import EarlyExit

PROMPTS = [[1, 7, 8, 3], [0, 0, 9, 3], [5, 6, 2, 3, 11, 3]]


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Iterator[Captures]:
    pytest.importorskip("transformers")
    from mmspec.hf import causal_target

    found = Captures()
    monkeypatch.setattr(causal_target, "use_cuda_graphs", lambda device: True)
    monkeypatch.setattr(captured_calls.CapturedCall, "__call__", lambda call, read: found.call(call, read))
    yield found


def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**size, vocab_size=50, pad_token_id=0)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(5 if p.dim() == 2 else 1)  # so that tokens matter
    return model


def tokens(model: Any, ids: list[int], recipe: str = "scd:window=4", **options: Any) -> Tensor:
    import mmspec

    given = torch.tensor([ids])
    out = model.generate(
        given, attention_mask=(given > 0).long(), do_sample=True, temperature=0.7, custom_generate=mmspec.generate,
        recipe=recipe, max_new_tokens=16, seed=[3], **options,
    )  # fmt: skip
    gc.collect()
    return torch.as_tensor(out)


def test_later_calls_replay_the_graphs_of_the_first(captures: Captures, monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    monkeypatch.setattr("mmspec.hf.causal_target.use_cuda_graphs", lambda device: False)
    wanted = [tokens(model, ids) for ids in PROMPTS]
    monkeypatch.setattr("mmspec.hf.causal_target.use_cuda_graphs", lambda device: True)
    first = tokens(model, PROMPTS[0])
    count = captures.count
    found = [first, *(tokens(model, ids) for ids in PROMPTS[1:])]
    assert count and captures.count == count, "longer and padded prompts have the same shapes"
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, wanted, strict=True))
    assert len(KeptGraphs.of(model.model)) == 1


def test_graphs_that_keep_their_numbers_give_other_tokens(captures: Captures, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the test above: a later call that leaves its numbers where no graph reads them."""
    from mmspec.hf.causal_target import CausalTarget

    model = llama()
    wanted = [tokens(model, ids) for ids in PROMPTS]
    free_graphs(model)
    monkeypatch.setattr(CausalTarget, "take_over", lambda target, tensors: None)
    found = [tokens(model, ids) for ids in PROMPTS]
    assert torch.equal(found[0], wanted[0])
    assert not all(torch.equal(ours, theirs) for ours, theirs in zip(found, wanted, strict=True))


def test_threads_do_not_share_graphs(captures: Captures) -> None:
    model, barrier = llama(), Barrier(2)
    wanted = [tokens(model, ids) for ids in PROMPTS[:2]]
    met = [0, 0]

    def decode(row: int) -> Tensor:
        def meet(step: Any) -> None:
            if met[row] < 4:  # both are decoding
                met[row] += 1
                barrier.wait(60)

        return tokens(model, PROMPTS[row], on_step=meet)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(decode, range(2)))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, wanted, strict=True))
    assert len(KeptGraphs.of(model.model)) == 2
    count = captures.count
    tokens(model, PROMPTS[0])
    assert captures.count == count


def test_graphs_are_bounded_and_can_be_freed(captures: Captures, monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    sets, lengths = KeptGraphs.of(model.model), (16, 70, 140)
    for length in lengths:
        tokens(model, [1] + [7] * length)
    assert len(sets) == 3, "as many as there are sizes"
    bytes_of_all = sum(one.graphs.nbytes for one in sets._free)
    monkeypatch.setattr("mmspec.decoding.kept_graphs.MAX_BYTES", bytes_of_all - 1)
    count = captures.count
    tokens(model, [1] + [7] * 16)
    assert captures.count == count and len(sets) == 2
    for length, is_new in ((140, False), (16, False), (70, True)):  # which was not used for longest
        count = captures.count
        tokens(model, [1] + [7] * length)
        assert (captures.count > count) == is_new, length
    assert 0 < sum(one.graphs.nbytes for one in sets._free) < bytes_of_all
    assert not len(KeptGraphs.of(copy.deepcopy(model).model))
    assert b"mmspec" not in pickle.dumps(model), "a pickled model is read where mmspec is not installed"
    free_graphs(model)
    count = captures.count
    tokens(model, PROMPTS[0])
    assert captures.count > count and KeptGraphs.of(model.model) is not sets


def test_other_weights_and_calls_need_other_graphs(captures: Captures) -> None:
    model = llama()
    before = tokens(model, PROMPTS[0])
    kept = KeptGraphs.of(model.model)._free[0]
    with torch.no_grad():
        model.model.norm.weight.mul_(-1)  # in place: a graph reads them where they are
    count, changed = captures.count, tokens(model, PROMPTS[0])
    assert captures.count == count and not torch.equal(changed, before)
    model.model.norm.weight.data = model.model.norm.weight.data.clone()  # moved
    assert torch.equal(tokens(model, PROMPTS[0]), changed) and captures.count > count
    assert kept not in KeptGraphs.of(model.model)._free
    free_graphs(model)
    hook = model.model.layers[0].register_forward_hook(lambda *_: None)
    tokens(model, PROMPTS[0])
    assert not len(KeptGraphs.of(model.model)), "a graph would run the hook once"
    hook.remove()


def test_graphs_are_freed_with_the_weights_that_they_read(captures: Captures) -> None:
    model = llama()
    tokens(model, PROMPTS[0])
    (kept,) = (ref(one) for one in KeptGraphs.of(model.model)._free)
    model.to(torch.float64)  # other memory, as after `model.to("cpu")`
    assert kept() is None, "their caches must not wait for the next call"
    moved = list[bool]()

    def move(step: Any) -> None:
        if not moved:
            moved.append(True)
            weight = next(model.model.parameters())
            weight.data = weight.data.clone()

    tokens(model, PROMPTS[0], on_step=move)
    assert moved and not len(KeptGraphs.of(model.model)), "a decode was using them"


def test_adapters_and_other_attention_need_other_graphs(captures: Captures) -> None:
    model = llama()
    tokens(model, PROMPTS[0])
    count = captures.count
    model.set_attn_implementation("eager")
    tokens(model, PROMPTS[0])
    assert captures.count > count
    free_graphs(model)
    model.model.layers[0].mlp.gate_proj._disable_adapters = False  # as layers of PEFT, which can switch adapters
    tokens(model, PROMPTS[0])
    assert not len(KeptGraphs.of(model.model))


def test_tables_that_are_made_anew_need_other_graphs(captures: Captures) -> None:
    model = llama()
    model.model.table = torch.zeros(3)
    tokens(model, PROMPTS[0])
    count = captures.count
    old, model.model.table = model.model.table, torch.zeros(3)
    tokens(model, PROMPTS[0])
    assert captures.count > count and old is not model.model.table


def test_precision_may_be_set_in_the_new_way(captures: Captures) -> None:
    """`allow_tf32` cannot be read any more then."""
    model, before = llama(), torch.backends.cuda.matmul.fp32_precision
    tokens(model, PROMPTS[0])
    count = captures.count
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        tokens(model, PROMPTS[0])
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert captures.count > count


def test_earlier_calls_do_not_choose_the_width_of_windows(captures: Captures, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of another width round differently: a seed would give other tokens after other calls."""
    widths, call = list[int](), captured_calls.GraphCache.call

    def recorded(graphs: Any, read: Any, batch_size: int, width: int, *others: Any) -> Any:
        widths.append(width)
        return call(graphs, read, batch_size, width, *others)

    monkeypatch.setattr(captured_calls.GraphCache, "call", recorded)
    model = llama()
    tokens(model, PROMPTS[0], "scd:window=4")
    alone = widths.copy()
    assert 4 in alone
    free_graphs(model)
    tokens(model, PROMPTS[0], "scd:window=5")
    assert len(KeptGraphs.of(model.model)) == 1
    widths.clear()
    tokens(model, PROMPTS[0], "scd:window=4")
    assert widths == alone


def test_graphs_are_given_back_where_their_tensors_are_left(captures: Captures) -> None:
    from mmspec.hf.causal_target import Backbone, CausalTarget, Prompt, with_cuda_graphs

    model = llama()
    embed = model.get_input_embeddings()

    def target(rows: int) -> Any:
        ids = torch.arange(1, 1 + 4 * rows).view(rows, 4)
        prompt = Prompt(embed(ids).detach(), ids > 0, torch.arange(4).expand(1, rows, 4))
        return with_cuda_graphs(
            CausalTarget(Backbone(model.model, embed, model.lm_head, 50, torch.device("cpu")), prompt, None, 16, 8)
        )

    with torch.inference_mode():
        ours, sets = target(4), KeptGraphs.of(model.model)
        ours.prefill()
        ours.forward(torch.ones(4, 2, dtype=torch.int64), np.array([0, 0, 0, 0]))
        caches = [ref(layer) for layer in ours._target._cache.tensors()]
        select_rows(ours, [0, 2], 4)
        assert not len(sets), "finished rows stay, and captured calls fit"
        features = ours.features().clone()
        ours.settle(np.array([0, 0]), np.array([[2], [2]]))
        assert len(sets) == 1 and torch.equal(ours.features(), features)
        free_graphs(model)
        del sets
        assert all(cache() is None for cache in caches), "the memory of the rows that have left is free"


def test_functions_are_compared_by_what_they_call() -> None:
    layer, weight = nn.Linear(2, 2), torch.zeros(4, 2)

    def made(offset: int, rows: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: layer(x + offset) @ rows.T

    def parts(*calls: object) -> Any:
        return parts_of(*calls)

    from mmspec.decoding.kept_graphs import _same

    assert _same(parts(made(1, weight[:2])), parts(made(1, weight[:2])))
    assert not _same(parts(made(1, weight[:2])), parts(made(2, weight[:2])))
    assert not _same(parts(made(1, weight[:2])), parts(made(1, weight[1:3])))
    assert not _same(parts(layer), parts(nn.Linear(2, 2)))
    assert _same(parts(partial(layer.forward, weight)), parts(partial(layer.forward, weight)))
    assert parts(object()) is None and parts(partial(layer, {})) is None


def test_graphs_do_not_keep_their_model_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(2, 2)
    graphs = captured_calls.GraphCache()
    graphs.tensors = []
    monkeypatch.setattr(captured_calls.GraphCache, "has_calls", True)
    parts = parts_of(layer, layer.forward)
    assert parts is not None
    kept = _Kept(parts, (), graphs)
    _drop_with_weights(KeptGraphs.of(layer), kept, layer, torch.device("cpu"))
    KeptGraphs.of(layer).give(kept)
    assert len(KeptGraphs.of(layer)) == 1
    weights, alive, sets = layer.state_dict(), ref(layer), ref(KeptGraphs.of(layer))
    del layer, parts
    assert alive() is None, "its memory must not wait for a garbage collection"
    assert weights and sets() is None, "graphs do not stay with weights that are still in use"


def test_the_graphs_of_a_part_that_fails_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = list[int]()

    class FakeCapture:
        def __init__(self, inputs: Any, fixed: tuple[Any, ...]) -> None:
            self._end = fixed[0]

        def capture(self, read: Any, pool: object, first: bool) -> None:
            attempts.append(self._end)
            if self._end == 9:
                raise RuntimeError("cannot be captured")
            self._pool = pool

    class Pool:
        pass

    monkeypatch.setattr(captured_calls, "CapturedCall", FakeCapture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", Pool)
    graphs, device, part = captured_calls.GraphCache(), torch.device("cuda"), EarlyExit(1, guided=True)
    read: Any = None
    whole, inner = (graphs.call(read, 1, 2, 8, device, which) for which in (None, part))
    assert whole is not None and inner is not None
    pool, call = ref(graphs._pools[part]), ref(inner)
    del inner
    assert graphs.call(read, 1, 2, 9, device, part) is None and not graphs.works(part)
    assert pool() is None and call() is None
    assert [graphs.call(read, 1, 2, end, device, part) for end in (9, 8)] == [None, None]
    assert attempts == [8, 8, 9], "each attempt would run the model, and fail again"
    assert graphs.works() and graphs.call(read, 1, 2, 8, device) is whole


def test_graphs_that_are_not_kept_leave_nothing_with_the_weights(
    captures: Captures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmspec.decoding.kept_graphs.MAX_BYTES", 0)
    model = llama()
    tokens(model, PROMPTS[0])
    waiting: Any = finalize
    count = len(waiting._registry)
    tokens(model, PROMPTS[0])
    assert len(waiting._registry) == count
