"""Models with a depth decoder, with tiny random weights and their prompts given."""

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
from tiny_fish_s2 import fish_s2
from tiny_lfm2_audio import lfm2_audio
from tiny_moss_local import moss_local
from tiny_moss_local_v1 import moss_local_v1

from mmspec.audio.models.csm.decoding import CsmFrames
from mmspec.audio.models.fish_s2.decoding import FirstCodes, FishFrames
from mmspec.audio.models.fish_s2.model import read_model as read_fish
from mmspec.audio.models.heartmula import model as heartmula
from mmspec.audio.models.heartmula.decoding import HeartMuLaFrames, SongPrompt
from mmspec.audio.models.heartmula.model import read_model as read_heartmula
from mmspec.audio.models.lfm2_audio.decoding import Lfm2AudioFrames
from mmspec.audio.models.lfm2_audio.model import read_model as read_lfm2
from mmspec.audio.models.moss_local.decoding import MossLocalFrames
from mmspec.audio.models.moss_local.model import read_model as read_moss
from mmspec.audio.models.moss_local_v1.decoding import LocalV1Frames
from mmspec.audio.models.moss_local_v1.model import read_model as read_moss_v1
from mmspec.audio.models.qwen3_omni.decoding import talker_frames
from mmspec.hf.causal_target import Prompt
from mmspec.hf.plan import position_ids_of
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
    size, mask = (2, 3, talker.config.text_config.hidden_size), torch.ones(2, 3, dtype=torch.bool)
    embeds = torch.randn(size, generator=torch.Generator().manual_seed(0))
    return talker_frames(talker, Prompt(embeds, mask, position_ids_of(mask), added=embeds), 4)


def song(folder: Path) -> Any:
    sizes = {size: heartmula.Flavor(*each) for size, each in tiny_heartmula.SIZES.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heartmula, "FLAVORS", {**heartmula.FLAVORS, **sizes})
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


def lfm2(folder: Path) -> Any:
    return Lfm2AudioFrames(read_lfm2(lfm2_audio(folder), "cpu", torch.float32), [IDS] * 2, 4)


DEPTH_MODELS: dict[str, Callable[[Path], Any]] = {
    "csm": csm, "qwen3-tts": qwen3_tts, "qwen3-omni": omni, "heartmula": song, "fish-s2": fish, "moss-local": moss,
    "moss-local-v1": moss_v1, "lfm2-audio": lfm2,
}  # fmt: skip
