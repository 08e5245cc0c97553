"""The tiny Qwen3-TTS in tests/golden, and what the original computed with it; see `record_qwen3_tts`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import Qwen2Tokenizer

from mmspec.audio.models.qwen3_tts.decoding import Qwen3TTSFrames
from mmspec.audio.models.qwen3_tts.model import Qwen3TTS, read_model
from mmspec.audio.models.qwen3_tts.prompt import (
    Continuation,
    Qwen3TTSPrompt,
    embed_prompt,
    instruction_text,
    reference_text,
    spoken_text,
)

GOLDEN = Path(__file__).parent.parent / "golden"
FOLDER, JOINT = GOLDEN / "qwen3_tts", GOLDEN / "qwen3_tts_joint"


@cache
def expected(folder: Path = FOLDER) -> dict[str, Tensor]:
    return load_file(folder / "expected.safetensors")


@cache
def recorded(folder: Path = FOLDER) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    return found


@cache
def model(folder: Path = FOLDER) -> Qwen3TTS:
    return read_model(folder, "cpu", torch.float32)


@cache
def tokenizer(folder: Path = FOLDER) -> Any:
    return Qwen2Tokenizer.from_pretrained(folder)


def ids(text: str, folder: Path = FOLDER) -> Tensor:
    return torch.tensor(tokenizer(folder)(text)["input_ids"])


def copy(where: Path, kind: str, **changes: Any) -> Path:
    """A copy of the folder as a model of another kind, with changes of its config."""
    shutil.copytree(FOLDER, where, ignore=shutil.ignore_patterns("expected.safetensors", "cases.json"))
    config = json.loads((where / "config.json").read_text())
    (where / "config.json").write_text(json.dumps({**config, "tts_model_type": kind, **changes}))
    return where


@dataclass(frozen=True)
class Case:
    """A recorded call.

    Attributes:
        name: Its name in `cases.json`.
        call: Its arguments.
    """

    name: str
    call: dict[str, Any]

    @property
    def count(self) -> int:
        return len(self.call["text"])

    @property
    def clone(self) -> bool:
        return self.name.startswith("clone")

    def values(self, name: str) -> Sequence[Any]:
        """An argument, for each row."""
        value = self.call.get(name)
        return value if isinstance(value, list) else [value] * self.count

    def prompts(self) -> list[Qwen3TTSPrompt]:
        config, continuation = model().config, None
        if "ref_text" in self.call:
            continuation = Continuation(ids(reference_text(self.call["ref_text"])), expected()["reference_codes"])
        found = []
        rows = zip(*(self.values(name) for name in ("text", "language", "speaker", "instruct")), strict=True)
        for text, language, speaker, instruct in rows:
            name = None if speaker is None else speaker.lower()
            found.append(
                Qwen3TTSPrompt(
                    ids=ids(spoken_text(text)),
                    instruction=ids(instruction_text(instruct)) if instruct else None,
                    language=config.language(language, name),
                    speaker=None if name is None else config.speakers[name],
                    continuation=continuation,
                    whole_text=self.call.get("non_streaming_mode", not self.clone),
                )
            )
        return found

    def embedded(self) -> list[tuple[Tensor, Tensor]]:
        vector = expected()["speaker"] if self.clone else None
        return [embed_prompt(model(), prompt, vector) for prompt in self.prompts()]

    def frames(self, length: int, slack: int = 0) -> Qwen3TTSFrames:
        return Qwen3TTSFrames(model(), self.embedded(), length, slack, 1.05)


CASES = [Case(name, call) for name, call in recorded()["cases"].items()]
