"""What lies between two calls of a model, captured as CUDA graphs: the tokens of kernels that are launched one by one.

`tests/decoding/test_window_counts.py` compares them on a device that counts, without a GPU.
"""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from batch_runs import run

from mmspec.decoding import captured, graph_capture, loop
from mmspec.decoding.ahead import OpenedWindow
from mmspec.decoding.batch import BatchState
from mmspec.decoding.cuda_graphs import CUDAGraphTarget
from mmspec.decoding.graph_capture import GraphPool
from mmspec.decoding.layout import Layout
from mmspec.decoding.loop import RunningBatch
from mmspec.recipes import parse
from mmspec.sampling import transfers
from mmspec.sampling.params import SamplingParams

RECIPES = ["scd:window=6", "sjd:window=5,start=random", "scd:window=4,coupling=gumbel", "beta:window=5"]
LENGTH = 144


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", RECIPES)
def test_tokens_are_those_of_kernels_launched_one_by_one(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gpt_class = pytest.importorskip("mmspec.vision.llamagen.gpt", reason="diffusers is not installed").LlamaGenGPT
    from mmspec.vision.llamagen.target import LlamaGenTarget

    device = torch.device("cuda")
    torch.manual_seed(0)
    size = {"vocab_size": 50, "dim": 32, "n_layer": 2, "n_head": 2, "num_classes": 5, "grid_size": 12, "ffn_dim": 32}
    gpt = gpt_class(**size).to(device).eval()
    samplings = [SamplingParams(temperature=0.9, top_k=20, top_p=0.9, guidance_scale=2.0)] * 3
    own, graphs = graph_capture.capture, list[object]()

    def counting(*given: Any) -> object:
        graphs.append(own(*given))
        return graphs[-1]

    def tokens() -> torch.Tensor:
        target = LlamaGenTarget(gpt, torch.arange(3, device=device), gpt.unconditional(3), None, 8)
        return run(CUDAGraphTarget(target), parse(recipe), Layout(LENGTH, 12), samplings, [0, 1, 2]).tokens

    monkeypatch.setattr(captured, "capture", counting)
    monkeypatch.setattr(loop, "_IDLE", torch.inf)
    replayed = [tokens() for _ in range(2)]  # the second decode takes over the memory of the first one's graphs
    assert len(graphs) >= 4 and None not in graphs, "a weak test: nothing was captured"
    monkeypatch.setattr(captured, "can_capture", lambda device: False)
    launched = tokens()
    assert all(torch.equal(one, launched) for one in replayed)


def test_numbers_of_the_host_are_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph would copy the numbers of the time of its capture again and again."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="cannot be captured"):
        transfers.page_locked(torch.zeros(3), torch.device("cuda"))


def test_later_graphs_take_over_the_memory_of_earlier_ones() -> None:
    """One pool for decodes one after the other, and one each for those at the same time."""
    device = torch.device("cuda", 7)
    first, second = GraphPool.of(device), GraphPool.of(device)
    assert first is not second
    first.latest = object()  # type: ignore[assignment]
    for pool in (first, second):
        pool.release(device)
    assert GraphPool.of(device) is first, "the second one has no graph to live with"
    assert GraphPool.of(device) not in (first, second)


def test_windows_are_captured_after_windows_of_their_own_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """`window=auto` changes the width: what kernels and samplers prepare once for a width must not be captured."""
    none = cast(Any, None)
    state = BatchState([0], Layout(64, 8), 8, torch.device("cpu"))
    batch = RunningBatch(none, none, none, none, state, none, none)
    asked: list[int] = []

    def asking(*given: Any) -> None:
        asked.append(given[-1].width)

    def opened(width: int) -> OpenedWindow:
        return OpenedWindow(width, state.ids, none, none, none)

    monkeypatch.setattr(loop, "capture_windows", asking)
    batch._opened = opened(4)
    for alike in range(3):
        batch._captured(none, opened(4))
        assert not asked, f"captured after {alike} windows"
        batch._note(4, 4, 0.0)
    batch._captured(none, opened(8))
    assert not asked, "no window of 8 has been launched"
    batch._captured(none, opened(4))
    assert asked == [4]
    batch._captured(none, opened(4))
    assert asked == [4], "one that cannot be captured is tried again after other windows only"
