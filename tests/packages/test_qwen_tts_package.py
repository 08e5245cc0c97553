"""`mmspec.compat.qwen_tts` beside qwen-tts itself, which runs in an environment of its own; `.ci/packages` runs it."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import golden_qwen3_tts as golden
import numpy as np
import pytest
import torch

from mmspec.compat.qwen_tts import DEFAULTS, Qwen3TTSModel

pytestmark = pytest.mark.qwen_tts

METHODS = ("create_voice_clone_prompt", "generate_voice_clone", "generate_voice_design", "generate_custom_voice")
SIGNATURES = f"""
import inspect, json
from qwen_tts import Qwen3TTSModel
print(json.dumps({{name: [[p.name, None if p.default is p.empty else p.default] for p in
    inspect.signature(getattr(Qwen3TTSModel, name)).parameters.values() if p.kind != p.VAR_KEYWORD]
    for name in {METHODS}}}))
print(json.dumps(Qwen3TTSModel._merge_generate_kwargs(Qwen3TTSModel.__new__(type("A", (Qwen3TTSModel,), dict(
    generate_defaults={{}}))))))
"""


def theirs(*arguments: str) -> str:
    """Runs the interpreter of the other environment, and returns what it prints."""
    return subprocess.run(
        [os.environ["QWEN_TTS_PYTHON"], *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def test_arguments_and_defaults_are_those_of_the_package() -> None:
    signatures, defaults = (json.loads(line) for line in theirs("-c", SIGNATURES).splitlines()[-2:])
    for name in METHODS:
        own = inspect.signature(getattr(Qwen3TTSModel, name)).parameters.values()
        found = [[p.name, None if p.default is p.empty else p.default] for p in own if p.kind != p.VAR_KEYWORD]
        assert found == signatures[name]
    assert defaults == DEFAULTS


def test_greedy_codes_and_audio_are_those_of_the_package(root: Path, tmp_path: Path, monkeypatch: Any) -> None:
    theirs(str(root / "tools" / "golden" / "record_qwen3_tts.py"), str(tmp_path))
    folder = tmp_path / "qwen3_tts"
    monkeypatch.setattr(golden, "FOLDER", folder)
    expected = golden.expected(folder)
    voice = expected["reference"].numpy(), 24000
    for case in golden.CASES:
        kind = "base" if case.clone else case.name.removesuffix("_streaming")
        model = Qwen3TTSModel.from_pretrained(str(golden.copy(tmp_path / case.name, kind)), dtype=torch.float32)
        call: Any = model.generate_voice_clone if case.clone else getattr(model, f"generate_{kind}")
        more = {"ref_audio": voice} if case.clone else {}
        waves, rate = call(
            **case.call, **more, do_sample=False, subtalker_dosample=False, max_new_tokens=golden.recorded()["length"]
        )
        assert rate == 24000
        for row, wave in enumerate(waves):
            assert len(wave) == 240 * len(expected[f"{case.name}.codes.{row}"])
            if (audio := expected.get(f"{case.name}.audio.{row}")) is not None:
                np.testing.assert_allclose(wave, audio.numpy(), atol=1e-5)
        stats = model.stats
        assert stats is not None
        print(case.name, f"{stats.tokens} tokens in {stats.target_calls} calls")
