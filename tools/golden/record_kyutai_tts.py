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
from golden import GOLDEN
from safetensors.torch import save_file
from tiny_kyutai import BOOKS, CODES, CONTROL, Words, config, fill_model, prefix, prefix_config, voice

TEXTS = ["one two (three): four", "Hello!", 'so <break time="0.3s"/> it’s late now and I must really go home']
CFG, TOP_K, TEMPERATURE, STEPS, WATCHED = 1.5, 3, 0.6, 70, 12
PREFIXES, GUIDANCE = [6, 2, 4], 2.0  # frames of the voices that are a beginning


def main() -> None:
    if importlib.util.find_spec("sentencepiece") is None:
        stand_in = MagicMock(__spec__=importlib.machinery.ModuleSpec("sentencepiece", None))
        sys.modules["sentencepiece"] = stand_in
    found: dict[str, Any] = {"texts": TEXTS, "cfg": CFG, "sampling": {"temperature": TEMPERATURE, "top_k": TOP_K}}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "voice.safetensors"
        save_file({"speaker_wavs": voice()}, file)
        made = package_model(config())
        found |= record(made, [made.make_condition_attributes([file], CFG)] * len(TEXTS), None, 0)
    prefixes = [torch.cat([torch.full((1, count), -1), prefix(count, count)]) for count in PREFIXES]
    made = package_model(prefix_config(), GUIDANCE)
    found["prefix"] = {"lengths": PREFIXES, "guidance": GUIDANCE, **record(made, [], prefixes, PREFIXES[0])}
    made = package_model(prefix_config(**CONTROL), GUIDANCE)
    attributes = [made.make_condition_attributes([])] * len(TEXTS)
    conditioned = record(made, attributes, prefixes, PREFIXES[0])
    found["prefix"]["conditioned"] = {name: conditioned[name] for name in ("ends", "frames")}
    file = GOLDEN / "kyutai_tts.json"
    file.write_text(json.dumps(found) + "\n", encoding="utf-8")


def package_model(settings: dict[str, Any], guidance: float = 1.0) -> Any:
    """The package's model with the weights of `fill_model`."""
    from moshi.models import loaders
    from moshi.models.tts import StateMachine, TokenIds, TTSModel

    names = ("moshi_name", "mimi_name", "tokenizer_name", "model_type", "tts_config", "model_id")
    model = loaders.get_moshi_lm(None, {k: v for k, v in settings.items() if k not in names}, "cpu", torch.float32)
    fill_model(model)
    tts = settings["tts_config"]
    machine = StateMachine(TokenIds(model.text_card + 1), tts["second_stream_ahead"], max_padding=8, initial_padding=2)
    mimi: Any = SimpleNamespace(frame_rate=12.5, sample_rate=24000)
    return TTSModel(
        model, mimi, Words(), "", "", machine, int(tts["audio_delay"] * 12.5), temp=0.0, cfg_coef=guidance, n_q=BOOKS,
        max_gen_length=STEPS,
    )  # fmt: skip


def record(made: Any, attributes: list[Any], prefixes: list[torch.Tensor] | None, skipped: int) -> dict[str, Any]:
    """What the model makes of `TEXTS`.

    Args:
        made: The model.
        attributes: The conditions of each text.
        prefixes: The voices that are a beginning, or None.
        skipped: Steps of the first text whose probabilities are left out.
    """
    from moshi.models import lm

    scripts = [made.prepare_script([text], padding_between=1) for text in TEXTS]
    entries = [[[entry.tokens, entry.padding] for entry in script] for script in scripts]
    out = made.generate(scripts, attributes, prefixes)
    frames = torch.cat(out.frames, dim=-1)[:, 1:]  # [B, K, F]
    seen: list[list[float]] = []

    def most_likely(logits: torch.Tensor, use: bool, temp: float, top_k: int, top_p: float = 0.0) -> torch.Tensor:
        """Records the distribution of the first row, and goes on with the most likely token."""
        p = (logits[0].flatten() / TEMPERATURE).softmax(-1)
        kept = p.masked_fill(p < p.topk(min(top_k, len(p))).values[-1], 0)
        seen.append([round(x, 6) for x in (kept / kept.sum()).tolist()])
        return logits.argmax(-1)

    with patch.object(lm, "sample_token", most_likely):
        again = made.generate(scripts, attributes, prefixes, top_k=TOP_K)
    assert int(frames.max()) < CODES
    steps = made.delay_steps
    # In the first steps, only a decision is made.
    before = skipped if skipped <= steps else steps + (1 + BOOKS) * (skipped - steps)
    return {
        "entries": entries,
        "text_tokens": [[taken for _, taken in row] for row in again.logged_text_tokens],
        "ends": out.end_steps, "frames": frames.transpose(1, 2).tolist(),
        "probs": seen[before : max(steps - skipped, 0) + before + WATCHED * (1 + BOOKS)],
    }  # fmt: skip


if __name__ == "__main__":
    main()
