"""Every `read` of models with a depth decoder, traced on a fake CUDA device: see `tests/decoding/test_fake_device.py`.

Both loops are captured in CUDA graphs, the backbone's steps and those along the depth. An operator whose result depends
on data, or a copy from the host, would fail a capture, and decoding would silently be slow.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import golden_qwen3_tts
import pytest
import tiny_heartmula
import tiny_omni
import tiny_speech
import torch
from fake_targets import made_targets, problems, traced_reads
from tiny_fish_s2 import fish_s2
from tiny_moss_local import moss_local
from tiny_moss_local_v1 import moss_local_v1
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException

import mmspec
from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.depth_target import DepthTarget
from mmspec.audio.depth.frame_batch import decode_frames
from mmspec.audio.models.csm import decoding
from mmspec.audio.models.csm.decoding import CsmFrames
from mmspec.audio.models.fish_s2.decoding import FirstCodes, FishFrames
from mmspec.audio.models.fish_s2.model import read_model as read_fish
from mmspec.audio.models.heartmula import model as heartmula
from mmspec.audio.models.heartmula.decoding import HeartMuLaFrames, SongPrompt
from mmspec.audio.models.heartmula.model import read_model as read_heartmula
from mmspec.audio.models.moss_local.decoding import MossLocalFrames
from mmspec.audio.models.moss_local.model import read_model as read_moss
from mmspec.audio.models.moss_local_v1.decoding import LocalV1Frames
from mmspec.audio.models.moss_local_v1.model import read_model as read_moss_v1
from mmspec.audio.models.qwen3_omni.decoding import talker_frames
from mmspec.hf.causal_target import CausalTarget, Prompt
from mmspec.hf.plan import position_ids_of
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams

IDS = torch.tensor([3, 4, 5])
HOT = SamplingParams(1.0, top_k=4)


def csm(folder: Path) -> Any:
    model = tiny_speech.csm()
    embeds = model.embed_text_tokens(IDS[None].expand(2, -1)).detach()
    return CsmFrames(model, embeds, torch.ones(2, 3, dtype=torch.bool), 4)


def qwen3_tts(folder: Path) -> Any:
    own = deepcopy(golden_qwen3_tts.model())  # other tests use the model itself, which must not be moved
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(golden_qwen3_tts, "model", lambda: own)
        return golden_qwen3_tts.CASES[1].frames(4)


def omni(folder: Path) -> Any:
    talker = tiny_omni.qwen3().talker
    embeds, mask = torch.randn(2, 3, talker.config.text_config.hidden_size), torch.ones(2, 3, dtype=torch.bool)
    return talker_frames(talker, Prompt(embeds, mask, position_ids_of(mask), added=embeds), 4)


def song(folder: Path) -> Any:
    model = read_heartmula(tiny_heartmula.write(folder), "cpu", torch.float32)
    return HeartMuLaFrames(model, [SongPrompt(IDS, IDS)] * 2, 4)


def fish(folder: Path) -> Any:
    model = read_fish(fish_s2(folder), "cpu", torch.float32)
    nothing = torch.empty(0, model.config.codebooks, dtype=torch.int64)
    return FishFrames(model, [(IDS, nothing)] * 2, 4, FirstCodes(HOT, 1.1))


def moss(folder: Path) -> Any:
    model = read_moss(moss_local(folder), "cpu", torch.float32)
    codes = torch.full((3, model.config.codebooks), model.config.code_pad)
    return MossLocalFrames(model, [(IDS, codes)] * 2, 4, HOT)


def moss_v1(folder: Path) -> Any:
    model = read_moss_v1(moss_local_v1(folder), "cpu", torch.float32)
    return LocalV1Frames(model, [(IDS, torch.zeros(3, 3, dtype=torch.int64))] * 2, 4, HOT, 1.1)


DEPTH_MODELS: dict[str, Callable[[Path], Any]] = {
    "csm": csm,
    "qwen3-tts": qwen3_tts,
    "qwen3-omni": omni,
    "heartmula": song,
    "fish-s2": fish,
    "moss-local": moss,
    "moss-local-v1": moss_v1,
}


class Enough(Exception):
    """Ends a run after its first frame."""


def stop(step: object) -> None:
    raise Enough


@pytest.mark.parametrize("name", DEPTH_MODELS)
def test_both_loops_can_be_captured(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {size: heartmula.Flavor(*each) for size, each in tiny_heartmula.SIZES.items()}
    monkeypatch.setattr(heartmula, "FLAVORS", {**heartmula.FLAVORS, **sizes})
    with made_targets(monkeypatch) as made, pytest.raises(Enough):
        model = DEPTH_MODELS[name](tmp_path)
        spec = FrameSpec(4, None, 0, SamplingParams(), SamplingParams())
        decode_frames(model, parse("scd:window=3"), spec, range(len(model._firsts)), on_step=stop)
    backbone, depth = made[:2]
    assert isinstance(backbone, CausalTarget) and isinstance(depth, DepthTarget)
    if name != "qwen3-omni":  # whose experts ask for a driver
        assert not problems(traced_reads(backbone))
    assert not problems(traced_reads(depth))


def test_both_loops_of_moshi_can_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_speech.moshi()
    inputs = model.get_unconditional_inputs(num_samples=2)
    with made_targets(monkeypatch) as made, pytest.raises(Enough):
        model.generate(**inputs, custom_generate=mmspec.generate, recipe="scd:window=3", max_new_tokens=4, on_step=stop)
    backbone, depth = made[:2]
    assert not problems(traced_reads(backbone)) and not problems(traced_reads(depth))


def test_codebooks_that_the_host_reads_are_detected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A broken variant: each head reads its own places, as on a CPU, whose number depends on data."""

    def broken(x: Tensor, index: Tensor, count: int, width: int, dtype: torch.dtype, apply: Any) -> Tensor:
        out = torch.empty(*index.shape, width, dtype=dtype, device=x.device)
        for number in range(count):
            out[index == number] = apply(number, x[index == number])
        return out

    monkeypatch.setattr(decoding, "by_index", broken)
    with made_targets(monkeypatch) as made:
        model = csm(tmp_path)
        spec = FrameSpec(2, None, 0, SamplingParams(), SamplingParams())
        decode_frames(model, parse("plain"), spec, range(2))
    with pytest.raises(DynamicOutputShapeException):
        traced_reads(made[1])
