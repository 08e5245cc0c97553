"""Records what the GPT-2 of the package coqui-tts computes with tiny weights; writes tests/golden/xtts.json.

Run with the folder `TTS` of the package as the only argument. Only its class `GPT` is imported, and what that needs of
the rest of the package stands in here, so that its other dependencies are not needed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from golden import GOLDEN
from tiny_xtts import SETTINGS, fill, prompts, sizes


def main(source: Path) -> None:
    for name in ("", ".tts", ".tts.layers", ".tts.layers.xtts", ".tts.layers.tortoise", ".utils"):
        module = ModuleType(f"TTS{name}")
        module.__path__ = [str(source.joinpath(*name.split(".")))]
        sys.modules[module.__name__] = module
    for name in ("trainer", "trainer.generic_utils", "TTS.utils.generic_utils"):
        other: Any = ModuleType(name)
        other.is_pytorch_at_least_2_4, other.__path__ = (lambda: True), []
        other.exists, other.default = (lambda x: x is not None), (lambda x, y: y if x is None else x)
        sys.modules[name] = other
    from TTS.tts.layers.xtts.gpt import GPT

    model = GPT(**sizes())
    fill((name, p) for name, p in model.named_parameters() if "wte" not in name)
    model.init_gpt_for_inference()
    model.eval()
    voices, texts = prompts()
    with torch.no_grad():
        greedy = model.generate(voices, texts, do_sample=False, **SETTINGS)
        how = {"do_sample": True, "temperature": 0.75, "top_k": 9, "top_p": 0.85}
        torch.manual_seed(0)
        codes, out = model.generate(
            voices[:1], texts[:1], return_dict_in_generate=True, output_scores=True, **how, **SETTINGS
        )
    probs = [
        {str(int(i)): round(float(p[i]), 7) for i in p.nonzero()[:, 0]} for p in torch.cat(out.scores[:4]).softmax(-1)
    ]
    found = {"greedy": greedy.tolist(), "sampling": how, "codes": codes[0, :4].tolist(), "probs": probs}
    file = GOLDEN / "xtts.json"
    file.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
