"""Records what the code of MOSS-TTS-Local v1.5 computes for a tiny model; writes tests/golden/moss_local.json.

Run with the folder `moss_tts_local_v1.5` of github.com/OpenMOSS/MOSS-TTS as the only argument. Its processor is made
without its codec, and torchaudio, which it uses for reference audio only, may be missing.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from golden import GOLDEN
from tiny_moss import tokenizer
from tiny_moss_local import KINDS, config, fill_model

MESSAGES: list[dict[str, Any]] = [
    {"text": "one two three"},
    {"text": "two", "language": "French", "instruction": "Slowly.", "tokens": 12},
    {"text": "three one", "reference": [torch.tensor([[1, 2, 3], [4, 5, 6], [7, 0, 1]])]},
]
SAMPLING = {"audio_temperature": 1.7, "audio_top_p": 0.8, "audio_top_k": 4}
FRAMES = 12


def main(source: Path) -> None:
    if importlib.util.find_spec("torchaudio") is None:
        sys.modules["torchaudio"] = MagicMock(__spec__=importlib.machinery.ModuleSpec("torchaudio", None))
    package = ModuleType("moss")
    package.__path__ = [str(source)]
    sys.modules["moss"] = package
    from moss import modeling_moss_tts as module
    from moss.configuration_moss_tts import MossTTSLocalConfig
    from moss.processing_moss_tts import MossTTSLocalProcessor

    found: dict[str, Any] = {"sampling": SAMPLING}
    for kind, changed in KINDS.items():
        given = {k: v for k, v in config(**changed).items() if k not in ("architectures", "model_type")}
        values = MossTTSLocalConfig(**given, attn_implementation="eager")
        model = fill_model(module.MossTTSLocalModel(values)).float().eval()
        processor = MossTTSLocalProcessor.__new__(MossTTSLocalProcessor)
        processor.tokenizer, processor.model_config = tokenizer(), values
        batch = processor([[processor.build_user_message(**message)] for message in MESSAGES])
        prompts = [ids[mask].tolist() for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)]
        made = model.generate(**batch, max_new_frames=FRAMES, do_sample=False)
        greedy = [[frame[1:] for frame in rows[1 + start :].tolist() if frame[1] < values.audio_pad_token_id]
                  for start, rows in made]  # fmt: skip
        seen: list[torch.Tensor] = []

        def most_likely(probs: torch.Tensor, num_samples: int, seen: list[torch.Tensor] = seen) -> torch.Tensor:
            """Records a distribution of the third prompt, and goes on with the most likely code, and another frame."""
            seen.append(probs[2])
            chosen = probs.argmax(-1, keepdim=True)
            return torch.zeros_like(chosen) if probs.shape[-1] == 2 else chosen

        with patch.object(torch, "multinomial", most_likely):
            made = model.generate(**batch, max_new_frames=3, **SAMPLING)
        start, rows = made[2]
        found[kind] = {
            "prompts": prompts,
            "greedy": greedy,
            "frames": [frame[1:] for frame in rows[1 + start :].tolist()],
            "probs": [[round(p, 6) for p in probs.tolist()] for probs in seen],
        }
    file = GOLDEN / "moss_local.json"
    file.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
