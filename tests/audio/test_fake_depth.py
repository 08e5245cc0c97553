"""Every `read` of models with a depth decoder, traced on a fake CUDA device: see `tests/decoding/test_fake_device.py`.

Both loops are captured in CUDA graphs, the backbone's steps and those along the depth. An operator whose result depends
on data, or a copy from the host, would fail a capture, and decoding would silently be slow.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_speech
import torch
from depth_models import DEPTH_MODELS
from fake_targets import made_targets, problems, traced_frame, traced_reads, traced_whole
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException

import mmspec
from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.depth_target import DepthTarget
from mmspec.audio.depth.frame_rows import decode_frames
from mmspec.audio.models.csm import decoding
from mmspec.hf.causal_target import CausalTarget
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams


class Enough(Exception):
    """Ends a run after its first frame."""


def stop(step: object) -> None:
    raise Enough


@pytest.mark.parametrize("name", DEPTH_MODELS)
def test_both_loops_can_be_captured(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with made_targets(monkeypatch) as made, pytest.raises(Enough):
        model = DEPTH_MODELS[name](tmp_path)
        spec = FrameSpec(4, None, 0, SamplingParams(), SamplingParams())
        decode_frames(model, parse("scd:window=3"), spec, range(len(model._firsts)), on_step=stop)
    backbone, depth = made[:2]
    assert isinstance(backbone, CausalTarget) and isinstance(depth, DepthTarget)
    if name != "qwen3-omni":  # whose experts ask for a driver
        assert not problems(traced_reads(backbone))
    traces = [*traced_reads(depth), traced_frame(depth, model.codes), traced_whole(depth, 1 + model.codes)]
    assert not problems(traces)


def test_both_loops_of_moshi_can_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_speech.moshi()
    inputs = model.get_unconditional_inputs(num_samples=2)
    with made_targets(monkeypatch) as made, pytest.raises(Enough):
        model.generate(**inputs, custom_generate=mmspec.generate, recipe="scd:window=3", max_new_tokens=4, on_step=stop)
    backbone, depth = made[:2]
    assert not problems(traced_reads(backbone))
    assert not problems([*traced_reads(depth), traced_frame(depth, 4)])


def test_codebooks_that_the_host_reads_are_detected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A broken variant: each head reads its own places, as on a CPU, whose number depends on data."""

    def broken(x: Tensor, index: Tensor, count: int, width: int, dtype: torch.dtype, apply: Any) -> Tensor:
        out = torch.empty(*index.shape, width, dtype=dtype, device=x.device)
        for number in range(count):
            out[index == number] = apply(number, x[index == number])
        return out

    monkeypatch.setattr(decoding, "by_index", broken)
    with made_targets(monkeypatch) as made:
        model = DEPTH_MODELS["csm"](tmp_path)
        spec = FrameSpec(2, None, 0, SamplingParams(), SamplingParams())
        decode_frames(model, parse("plain"), spec, range(2))
    with pytest.raises(DynamicOutputShapeException):
        traced_reads(made[1])
