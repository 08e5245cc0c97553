"""Records what NVIDIA/personaplex computes with tiny weights; writes tests/golden/personaplex.json.

Needs its folder moshi, einops, sphn and tqdm on the path; sentencepiece may be missing. Run with NO_TORCH_COMPILE=1.
Mimi is not run: the voice and the user are codes.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from golden import GOLDEN
from tiny_personaplex import SIZES, Letters, state, user

ROLE, SILENCE = "You are kind.", 6  # frames, half a second
VOICE, SPOKEN, SHIFT = 5, 24, 911  # frames of the voice and of the user
TOP_K, TEXT_TOP_K, WATCHED = 4, 3, 4


def main() -> None:
    if importlib.util.find_spec("sentencepiece") is None:
        stand_in = MagicMock(__spec__=importlib.machinery.ModuleSpec("sentencepiece", None))
        sys.modules["sentencepiece"] = stand_in
    model = package_model()
    ids = Letters().encode(wrapped(ROLE))
    found: dict[str, Any] = {"role": ROLE, "ids": ids, "top_k": TOP_K, "text_top_k": TEXT_TOP_K}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "voice.pt"
        found["codes"] = record(model, ids, str(file))
        saved = torch.load(file)
        found["voice"] = {name: value.tolist() for name, value in saved.items()}
        found["saved"] = record(model, ids, str(file), replayed=True)
        found["probs"] = probs(model, ids, str(file))
    (GOLDEN / "personaplex.json").write_text(json.dumps(found) + "\n", encoding="utf-8")


def wrapped(role: str) -> str:
    from moshi.offline import wrap_with_system_tags

    text: str = wrap_with_system_tags(role)
    return text


def package_model() -> Any:
    """The package's model with the weights of `tiny_personaplex.state`."""
    from moshi.models import loaders
    from moshi.models.lm import LMModel

    sizes = {**loaders._lm_kwargs, "dep_q": 16, **SIZES}
    model = LMModel(device="cpu", dtype=torch.float32, **sizes)
    model.load_state_dict(state(), strict=True)
    return model.eval()


def generator_of(model: Any, ids: list[int], voice: str, replayed: bool, greedy: bool = True) -> Any:
    """An `LMGen` that has read the prompts, the voice from codes or from its saved file."""
    from moshi.models import lm

    made = lm.LMGen(
        model, "cpu", use_sampling=not greedy, top_k=TOP_K, top_k_text=TEXT_TOP_K, sample_rate=24000, frame_rate=12.5,
        audio_silence_frame_cnt=SILENCE, text_prompt_tokens=ids, save_voice_prompt_embeddings=not replayed,
    )  # fmt: skip
    made.streaming_forever(1)
    if replayed:
        made.load_voice_prompt_embeddings(voice)
    else:
        made.voice_prompt, made.voice_prompt_audio = voice, torch.zeros(1, 1)

    def frames(mimi: Any) -> Iterator[torch.Tensor]:
        for frame in user(VOICE, SHIFT):
            yield frame.view(1, -1, 1)

    made._encode_voice_prompt_frames = frames
    made.step_system_prompts(None)
    return made


@torch.no_grad()
def record(model: Any, ids: list[int], voice: str, replayed: bool = False) -> list[list[int]]:
    """Text and codes of each frame that it returns, [frames, 9]."""
    made = generator_of(model, ids, voice, replayed)
    out = [made.step(frame.view(1, -1, 1))[0, :9, 0].tolist() for frame in user(SPOKEN)]
    return out


@torch.no_grad()
def probs(model: Any, ids: list[int], voice: str) -> list[list[list[float]]]:
    """The most likely tokens of the first frames and their probabilities, along the most likely tokens."""
    from moshi.models import lm

    seen: list[list[list[float]]] = []

    def most_likely(logits: torch.Tensor, use: bool, temp: float, top_k: int, top_p: float = 0.0) -> torch.Tensor:
        top = (logits.flatten() / temp).softmax(-1).topk(top_k)
        seen.append([top.indices.tolist(), [round(x, 6) for x in (top.values / top.values.sum()).tolist()]])
        return logits.argmax(-1)

    made = generator_of(model, ids, voice, True, greedy=False)
    with patch.object(lm, "sample_token", most_likely):
        for frame in user(WATCHED):
            made.step(frame.view(1, -1, 1))
    return seen


if __name__ == "__main__":
    main()
