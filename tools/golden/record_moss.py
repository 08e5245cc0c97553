"""Records what the code of MOSS-TTS computes for a tiny model with delays; writes tests/golden/moss_tts.json.

Run with the folder `moss_tts_delay` of github.com/OpenMOSS/MOSS-TTS as the only argument. Its normalization of texts is
left out, and an id of the published vocabulary that is written in its code is replaced by that of the tiny one.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from golden import GOLDEN
from tiny_moss import BOOKS, IDS, config, fill_model, tokenizer

MESSAGES: list[dict[str, Any]] = [
    {"text": "one two three"},
    {"text": "two", "language": "French", "instruction": "Slowly.", "tokens": 12},
    {"text": "three one", "reference": [torch.tensor([[1, 2, 3], [4, 5, 6], [7, 0, 1]])]},
]
SAMPLING = {"text_temperature": 1.5, "audio_temperature": 1.7, "audio_top_p": 0.8, "audio_top_k": 4}
GREEDY = {"text_temperature": 0.0, "audio_temperature": 0.0}
COLUMNS, SAMPLES = 14, 4_000


def main(source: Path) -> None:
    package = ModuleType("moss")
    copied = Path(tempfile.mkdtemp())
    for file in source.glob("*.py"):
        text = file.read_text().replace("[..., 151662]", f"[..., {IDS['<|delay_slot|>']}]")
        (copied / file.name).write_text(text)
    package.__path__ = [str(copied)]
    sys.modules["moss"] = package
    normalizer: Any = ModuleType("moss.tts_robust_normalizer_single_script")
    normalizer.normalize_tts_text = lambda text: text
    sys.modules[normalizer.__name__] = normalizer
    from moss import modeling_moss_tts as module
    from moss.configuration_moss_tts import MossTTSDelayConfig
    from moss.processing_moss_tts import MossTTSDelayProcessor

    values = MossTTSDelayConfig(**{k: v for k, v in config().items() if k not in ("architectures", "model_type")})
    values.torch_dtype = torch.float32
    model = fill_model(module.MossTTSDelayModel(values)).float().eval()
    processor = MossTTSDelayProcessor.__new__(MossTTSDelayProcessor)
    processor.tokenizer, processor.model_config = tokenizer(), values
    processor.audio_start_token, processor.audio_end_token = "<|audio_start|>", "<|audio_end|>"
    processor.audio_user_slot_token, processor.audio_assistant_gen_slot_token = "<|audio_user_slot|>", "<|gen_slot|>"
    processor.audio_assistant_delay_slot_token = "<|delay_slot|>"
    messages = [[processor.build_user_message(**message)] for message in MESSAGES]
    found: dict[str, Any] = {"sampling": SAMPLING, "prompts": []}
    for message in messages:
        found["prompts"].append(processor([message])["input_ids"][0].tolist())
    start = torch.tensor([IDS["<|audio_start|>"]] + [values.audio_pad_code] * BOOKS)

    def columns(which: list[Any], count: int, **how: Any) -> list[Any]:
        batch = processor(which)
        ids = torch.cat([batch["input_ids"], start.expand(len(which), 1, -1)], dim=1)
        mask = torch.cat([batch["attention_mask"], torch.ones(len(which), 1, dtype=torch.bool)], dim=1)
        out = model.generate(ids, mask, max_new_tokens=count, **how)
        return [each[1][-(each[1].shape[0] - int(each[0])) :].tolist() for each in out]

    slots = {IDS["<|gen_slot|>"]: 0, IDS["<|delay_slot|>"]: 1, IDS["<|audio_end|>"]: 2}

    def cut(row: list[list[int]]) -> list[list[int]]:
        """The columns to the end of the audio, with the slots as numbers."""
        made = []
        for column in row:
            made.append([slots.get(column[0], -1), *column[1:]])
            if column[0] == IDS["<|audio_end|>"]:
                break
        return made

    found["greedy"] = [cut(row) for row in columns(messages, COLUMNS, **GREEDY)]
    torch.manual_seed(0)
    rows = columns(messages[:1] * SAMPLES, 3, **SAMPLING)
    found["samples"] = dict(Counter("".join(str(c) for column in cut(row) for c in column) for row in rows))
    file = GOLDEN / "moss_tts.json"
    file.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
