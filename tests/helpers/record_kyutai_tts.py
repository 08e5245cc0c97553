"""Records what the package moshi computes for a tiny Kyutai TTS; writes tests/golden/kyutai_tts.json.

Needs moshi 0.2.13, einops and sphn on the path; sentencepiece may be missing. Run with NO_TORCH_COMPILE=1.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from safetensors.torch import save_file
from tiny_kyutai import BOOKS, CODES, Words, config, fill_model, voice

TEXTS = ["one two (three): four", "Hello!", 'so <break time="0.3s"/> it’s late now and I must really go home']
CFG, TOP_K, TEMPERATURE, STEPS, WATCHED = 1.5, 3, 0.6, 70, 12


def main() -> None:
    if importlib.util.find_spec("sentencepiece") is None:
        stand_in = MagicMock(__spec__=importlib.machinery.ModuleSpec("sentencepiece", None))
        sys.modules["sentencepiece"] = stand_in
    from moshi.models import lm, loaders
    from moshi.models.tts import StateMachine, TokenIds, TTSModel

    names = ("moshi_name", "mimi_name", "tokenizer_name", "model_type", "tts_config", "model_id")
    model = loaders.get_moshi_lm(None, {k: v for k, v in config().items() if k not in names}, "cpu", torch.float32)
    fill_model(model)
    tts = config()["tts_config"]
    machine = StateMachine(TokenIds(model.text_card + 1), tts["second_stream_ahead"], max_padding=8, initial_padding=2)
    steps = int(tts["audio_delay"] * 12.5)
    mimi: Any = SimpleNamespace(frame_rate=12.5, sample_rate=24000)
    made = TTSModel(
        model, mimi, Words(), "", "", machine, steps, temp=0.0, n_q=BOOKS, max_gen_length=STEPS
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "voice.safetensors"
        save_file({"speaker_wavs": voice()}, file)
        condition = made.make_condition_attributes([file], CFG)
    scripts = [made.prepare_script([text], padding_between=1) for text in TEXTS]
    entries = [[[entry.tokens, entry.padding] for entry in script] for script in scripts]
    out = made.generate(scripts, [condition] * len(TEXTS))
    frames = torch.cat(out.frames, dim=-1)[:, 1:]  # [B, K, F]
    seen: list[list[float]] = []

    def most_likely(logits: torch.Tensor, use: bool, temp: float, top_k: int, top_p: float = 0.0) -> torch.Tensor:
        """Records the distribution of the first row, and goes on with the most likely token."""
        p = (logits[0].flatten() / TEMPERATURE).softmax(-1)
        kept = p.masked_fill(p < p.topk(min(top_k, len(p))).values[-1], 0)
        seen.append([round(x, 6) for x in (kept / kept.sum()).tolist()])
        return logits.argmax(-1)

    with patch.object(lm, "sample_token", most_likely):
        again = made.generate(scripts, [condition] * len(TEXTS), top_k=TOP_K)
    found = {
        "texts": TEXTS, "cfg": CFG, "sampling": {"temperature": TEMPERATURE, "top_k": TOP_K}, "entries": entries,
        "text_tokens": [[taken for _, taken in row] for row in again.logged_text_tokens],
        "ends": out.end_steps, "frames": frames.transpose(1, 2).tolist(),
        "probs": seen[: steps + WATCHED * (1 + BOOKS)],
    }  # fmt: skip
    assert int(frames.max()) < CODES
    file = Path(__file__).parent.parent / "golden" / "kyutai_tts.json"
    file.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
