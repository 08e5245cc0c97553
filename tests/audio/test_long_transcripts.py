"""The transcript of a voice counts: with its audio, the text and what is generated it fits the positions, or one line.

Pocket, VibeVoice and Kyutai TTS read the audio of a voice alone, so that no transcript is long.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import golden_qwen3_tts
import numpy as np
import pytest
import tiny_fish_s2
import tiny_higgs_v3
import torch
from every_pipe import SPEECH

import mmspec
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.errors import PromptError

AUDIO = (0.3 * np.sin(np.arange(4800) / 30)).astype(np.float32)[None]
CODES = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 0, 1]])
WORDS = "one two three "


def with_audio(name: str) -> Callable[[Path, str], Any]:
    return lambda folder, transcript: SPEECH[name](folder).with_reference_audio(AUDIO, 24000, transcript)


def qwen3_tts(folder: Path, transcript: str) -> Any:
    """With the whole text before the frames; else it is laid along them, and takes no positions of its own."""
    config = {"frames": 8, "non_streaming_mode": True}
    pipe = mmspec.load(str(golden_qwen3_tts.copy(folder, "base")), config=config)
    return pipe.with_reference_audio(AUDIO, 24000, transcript)


def with_codes(save: Callable[[Path], Path], codec: Any) -> Callable[[Path, str], Any]:
    def load(folder: Path, transcript: str) -> Any:
        voice = ReferenceCodes(transcript, CODES)
        return mmspec.load(str(save(folder)), config={"codec": codec, "frames": 5, "voice": voice})

    return load


VOICES: dict[str, Callable[[Path, str], Any]] = {
    "csm": with_audio("csm"),
    "higgs": with_audio("higgs"),
    "qwen3-tts": qwen3_tts,
    "fish-s2": with_codes(tiny_fish_s2.fish_s2, tiny_fish_s2.Codec()),
    "higgs-v3": with_codes(tiny_higgs_v3.higgs_v3, tiny_higgs_v3.Codec()),
}


@pytest.mark.parametrize("name", VOICES)
def test_long_transcripts_are_counted(name: str, tmp_path: Path) -> None:
    short = VOICES[name](tmp_path / "short", WORDS)
    assert len(short.read("one two", None).parts) == 1
    with pytest.raises(
        PromptError, match=r"^text of [\d,]+ tokens with its voice is too long; of the model's"
    ) as found:
        VOICES[name](tmp_path / "long", WORDS * 20_000).read("one two", None)
    assert "\n" not in str(found.value) and len(str(found.value)) < 500
