"""Prints what frames of a model with a depth decoder cost on a device that counts: `python frame_counts.py`, as JSON.

The model is a tiny CSM of transformers whose calls are recorded, and replayed as CUDA graphs are: a call is one launch.
By recipe, frames ahead and batch: the tokens, of captured calls, of eager ones and of a CPU; for each frame, or window
of frames, its launches, uploads and waits, the calls among the launches, and whether rows have left the batch.
"""

from __future__ import annotations

import json
import os
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import pytest
import tiny_speech
import torch
from counted_device import DEVICE, CountedDevice, DeviceTensor, counted_device
from torch import Tensor, nn

from mmspec.audio.depth import captured_depth
from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.depth_target import by_index
from mmspec.audio.depth.frame_batch import FrameBatch
from mmspec.audio.depth.frame_rows import decode_frames
from mmspec.audio.models.csm.decoding import CsmFrames
from mmspec.decoding.captured_calls import CapturedCall
from mmspec.decoding.loop import RunningBatch
from mmspec.hf import causal_target
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams

BOOKS, END, LENGTH = 6, 1, 6
CASES = [
    (recipe, ahead, rows)
    for recipe, ahead in (("plain", 0), ("scd:window=3", 0), ("draft:window=3", 0), ("scd", 2))
    for rows in (1, 5)
]


def on_device(model: nn.Module) -> Any:
    """The model with its weights on the device."""
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            module._parameters[name] = nn.Parameter(DeviceTensor(weight.detach()), requires_grad=False)
        for name, table in module.named_buffers(recurse=False):
            module._buffers[name] = DeviceTensor(table.detach())
    return model


def recorded(call: Any, read: Any, counted: CountedDevice) -> tuple[Tensor, Tensor]:
    """In place of a captured call: what it has given, after a replay."""
    if not hasattr(call, "graph"):
        is_on, counted.is_on = counted.is_on, False
        call._run(read)  # a warm-up, which allocates the cache
        counted.is_on = is_on

        def body() -> None:
            call.out = call._run(read)

        call.graph = counted.capture(body)
        assert call.graph is not None, "the call cannot be captured"
    counted.model_is_called()
    call.graph.replay()
    found: tuple[Tensor, Tensor] = call.out
    return found


def decoded(recipe: str, ahead: int, rows: int, placed: Any, device: Any) -> Tensor:
    """The frames of a decode.

    Args:
        recipe: The recipe.
        ahead: Frames in a window.
        rows: B.
        placed: Puts the weights of a model where they are used.
        device: Of the texts.
    """
    model, smaller = (placed(tiny_speech.csm(2 + n, codebooks=BOOKS, codes=7, layers=2 - n)) for n in (0, 1))
    text = (torch.arange(3) + torch.arange(rows)[:, None]) % 15 + 1

    def prompted(model: Any) -> CsmFrames:
        embeds = model.embed_text_tokens(text.to(device)).detach()
        return CsmFrames(model, embeds, torch.ones(rows, 3, dtype=torch.bool).to(device), LENGTH, ahead)

    target, draft = prompted(model), prompted(smaller) if recipe.startswith("draft") else None
    settings = SamplingParams(0.9, top_k=5), SamplingParams(1.2, top_k=5)
    spec, seeds = FrameSpec(LENGTH, lambda each: each[..., 0] == END, END, *settings), range(rows)
    return decode_frames(target, parse(recipe), spec, seeds, draft, ahead=ahead).frames


def frames(recipe: str, ahead: int, rows: int, captured: bool) -> dict[str, Any]:
    """The tokens of a decode, and what its frames, or windows of frames, cost."""
    found = list[dict[str, Any]]()
    with counted_device() as counted, pytest.MonkeyPatch.context() as patch:
        for module in (causal_target, captured_depth):
            patch.setattr(module, "use_cuda_graphs", lambda device: captured)
        patch.setattr(CapturedCall, "__call__", lambda call, read: recorded(call, read, counted))
        kind: Any = RunningBatch if ahead else FrameBatch
        step = kind.step

        def stepping(batch: Any) -> bool:
            counted.clear()
            before = len(batch.state.ids)
            running = bool(step(batch))
            names = dict(counted.launches)
            found.append(
                {
                    "launches": sum(names.values()),
                    "graphs": names.get("graph", 0),
                    "uploads": len(counted.uploads),
                    "waits": len(counted.waits),
                    "rows": len(batch.state.ids),
                    "fewer": len(batch.state.ids) != before,
                }
            )
            return running

        patch.setattr(kind, "step", stepping)
        tokens = decoded(recipe, ahead, rows, on_device, DEVICE).cpu().tolist()
        return {"frames": found, "tokens": tokens}


def selected() -> dict[str, Any]:
    """Whether `by_index` gives the values of a CPU where the host does not know the numbers, and its waits."""
    x, index = torch.randn(2, 3, 4), torch.tensor([[0, 2, 1], [2, 2, 0]])
    weight = torch.randn(3, 4, 5)
    own = by_index(x, index, 3, 5, torch.float32, lambda number, places: places @ weight[number])
    with counted_device() as counted:
        there = weight.to(DEVICE)
        found = by_index(
            x.to(DEVICE), index.to(DEVICE), 3, 5, torch.float32, lambda number, places: places @ there[number]
        )
        return {"equal": torch.allclose(found.cpu(), own, atol=1e-6), "waits": len(counted.waits)}


def main() -> None:
    """Prints all cases."""
    torch._C._set_only_lift_cpu_tensors(True)
    cases: dict[str, Any] = {"by_index": selected()}
    for recipe, ahead, rows in CASES:
        cases[f"{recipe} ahead={ahead} B={rows} cpu"] = decoded(
            recipe, ahead, rows, lambda model: model, "cpu"
        ).tolist()
    for recipe, ahead, rows in CASES:
        cases[f"{recipe} ahead={ahead} B={rows}"] = frames(recipe, ahead, rows, True)
        if rows > 1 and not recipe.startswith("draft"):
            cases[f"{recipe} ahead={ahead} B={rows} eager"] = frames(recipe, ahead, rows, False)
    print(json.dumps(cases))


if __name__ == "__main__":
    main()
