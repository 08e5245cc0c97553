"""Prints what a chunk of a codec's stream costs on a device that counts: `python codec_counts.py`, as JSON.

The codecs are tiny ones of transformers whose calls are recorded and replayed as CUDA graphs: a call is one launch.
By codec, frames of a chunk and whether calls are captured: launches, graphs among them, uploads and waits of a chunk in
the middle of a stream whose codes are on the device, as those of a model are; and whether its samples are a CPU's.
"""

from __future__ import annotations

import json
import os
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import pytest
import tiny_codecs
import torch
from counted_device import DEVICE, CountedDevice, counted_device
from frame_counts import on_device, recorded

from mmspec.audio.codecs import codec_of, overlap_graphs, stepped_stream
from mmspec.audio.codecs.dac import Dac
from mmspec.audio.codecs.overlap_graphs import CapturedChunks
from mmspec.audio.codecs.stepped_stream import SteppedStream
from mmspec.decoding.captured_calls import CapturedCall

MODELS: dict[str, Any] = {"mimi": tiny_codecs.mimi, "dac": tiny_codecs.dac}
IN_INFERENCE_MODE: list[tuple[Any, str]] = [(Dac, "decode"), (CapturedChunks, "decode"), (SteppedStream, "push")]
CHUNKS = (1, 8, 12, 25)


def call(captured_call: Any, read: Any, counted: CountedDevice) -> Any:
    """As `frame_counts.recorded`, after which the state is that before."""
    if not hasattr(captured_call, "graph"):
        steps = read.__self__
        before = [tensor.clone() for tensor in steps.tensors()]
        is_on, counted.is_on = counted.is_on, False
        captured_call._run(read)
        for tensor, value in zip(steps.tensors(), before, strict=True):
            tensor.copy_(value)

        def body() -> None:
            captured_call.out = captured_call._run(read)

        captured_call.graph = counted.capture(body)
        counted.is_on = is_on
        assert captured_call.graph is not None, "the call cannot be captured"
    return recorded(captured_call, read, counted)


def chunk(name: str, frames: int, captured: bool) -> dict[str, Any]:
    """What a chunk costs after 40 frames, and the third time that there is one of its size."""
    torch.set_grad_enabled(False)
    codec = codec_of(MODELS[name]())
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(codec.codebook_size, (1, codec.codebooks, 40 + 3 * frames), generator=generator)
    lengths = [20, 20, frames, frames, frames]
    stream = codec.stream()
    wanted = torch.cat([stream.push(each) for each in codes.split(lengths, dim=-1)], dim=-1)
    with counted_device() as counted, pytest.MonkeyPatch.context() as patch:
        for module in (stepped_stream, overlap_graphs):
            patch.setattr(module, "use_cuda_graphs", lambda device: captured)
            patch.setattr(module, "is_dispatched", lambda module, device: False)
        for kind, method in IN_INFERENCE_MODE:  # which `counted_device` has to do without
            patch.setattr(kind, method, getattr(kind, method).__wrapped__)
        patch.setattr(CapturedCall, "__call__", lambda own, read: call(own, read, counted))
        model = on_device(MODELS[name]())
        stream, made = codec_of(model).stream(), []
        for own in codes.to(DEVICE).split(lengths, dim=-1):
            counted.clear()
            made.append(stream.push(own))
        found = {
            "launches": sum(counted.launches.values()),
            "graphs": counted.launches["graph"],
            "uploads": len(counted.uploads),
            "waits": len(counted.waits),
        }
        audio = torch.cat([each.cpu() for each in made], dim=-1)
    return found | {"equal": torch.allclose(audio, wanted, atol=1e-4 * float(wanted.std()))}


def main() -> None:
    """Prints all cases."""
    torch._C._set_only_lift_cpu_tensors(True)
    cases = {
        f"{name} {frames}{'' if captured else ' eager'}": chunk(name, frames, captured)
        for name in MODELS for frames in CHUNKS for captured in (True, False)
    }  # fmt: skip
    print(json.dumps(cases))


if __name__ == "__main__":
    main()
