"""Records what the package kani-tts computes for a tiny model; writes tests/golden/kani.json.

Run with the folder of the package (`kani_tts` of kani-tts 1.0.1) as the only argument. Its other model class and NeMo
are not imported. The package samples the two marks before the codes, and checks the order of the codes afterwards; with
random weights both have to be enforced: prompts are continued with the marks, and ids restricted to their slots.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from golden import GOLDEN
from tiny_kani import SPEAKERS, model, tokenizer
from torch import Tensor

TEXTS: list[tuple[str, str | None]] = [("one two three", None), ("two", "katie"), ("three. one", " andrew ")]
SAMPLING = {"temperature": 1.0, "top_p": 0.95, "repetition_penalty": 1.1}
FRAMES, RECORDED = 6, 12


def main(source: Path) -> None:
    for name in ("nemo", "nemo.collections", "nemo.collections.tts", "nemo.collections.tts.models", "kani_tts"):
        sys.modules[name] = ModuleType(name)
    sys.modules["kani_tts"].__path__ = [str(source)]
    sys.modules["nemo.collections.tts.models"].AudioCodecModel = None  # type: ignore[attr-defined]
    sys.modules["kani_tts.model"] = ModuleType("kani_tts.model")
    sys.modules["kani_tts.model"].FlashCompatibleLfm2ForCausalLM = None  # type: ignore[attr-defined]
    from kani_tts.core import KaniModel, NemoAudioPlayer, TTSConfig

    class Codec:
        @staticmethod
        def from_pretrained(name: str) -> Any:
            return torch.nn.Identity()

    sys.modules["kani_tts.core"].AudioCodecModel = Codec  # type: ignore[attr-defined]
    conf = TTSConfig(max_new_tokens=4 * FRAMES + 1)
    kani = KaniModel.__new__(KaniModel)
    kani.conf, kani.player, kani.device, kani.tokenizer = conf, NemoAudioPlayer(conf), "cpu", tokenizer()
    kani.model = model(SPEAKERS)
    player, own = kani.player, kani.model.generate

    def allowed(length: int, row: int, ids: Tensor) -> list[int]:
        n = len(ids) - length
        if n == 4 * FRAMES:
            return [player.end_of_speech]
        first = player.audio_tokens_start + n % 4 * player.codebook_size
        return [*range(first, first + player.codebook_size), *([player.end_of_speech] if n and n % 4 == 0 else [])]

    seen: list[Tensor] = []

    def most_likely(probs: Tensor, num_samples: int) -> Tensor:
        seen.append(probs)
        return probs.argmax(-1, keepdim=True)

    torch.multinomial = most_likely  # type: ignore[assignment]
    found: dict[str, Any] = {"sampling": SAMPLING, "prompts": [], "greedy": [], "probs": []}
    for text, speaker in TEXTS:
        ids, _ = kani.get_input_ids(text, speaker)
        ids = torch.cat([ids, torch.tensor([[player.start_of_ai, player.start_of_speech]])], dim=1)
        found["prompts"].append(ids[0].tolist())
        kani.model.generate = partial(own, prefix_allowed_tokens_fn=partial(allowed, ids.shape[1]))
        seen.clear()
        out = kani.model_request(ids, torch.ones_like(ids), **SAMPLING)
        codes, _ = player.get_nano_codes(out[0])
        found["greedy"].append(codes[0].T.tolist())
        recorded = [p[0] for p in seen[:RECORDED]]
        found["probs"].append([{str(i): round(float(p[i]), 7) for i in p.nonzero()[:, 0].tolist()} for p in recorded])
    file = GOLDEN / "kani.json"
    file.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
