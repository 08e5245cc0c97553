"""Records what the package of Spark-TTS computes for made-up voices; writes tests/golden/spark.json.

Run with the root of github.com/SparkAudio/Spark-TTS as the only argument. Its codec is replaced, and so is the
generator of random numbers: the most likely token is taken.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from golden import GOLDEN
from tiny_spark import spark
from torch import Tensor

CALLS: list[tuple[str, str, str, str]] = [
    ("Hello there.", "female", "moderate", "high"),
    ("a", "male", "very_low", "very_high"),
    ("What, now? <|end_content|> 3-4", "female", "low", "moderate"),
]
LENGTH, RECORDED = 100, 3


def main(source: Path) -> None:
    found: dict[str, Any] = {"length": LENGTH, "calls": []}
    seen: list[Tensor] = []
    sounds: list[tuple[Tensor, Tensor]] = []

    class Codec:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def detokenize(self, speaker: Tensor, speech: Tensor) -> None:
            sounds.append((speaker, speech))

    def stub(name: str, **values: Any) -> None:
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(values)

    stub("sparktts.models")
    stub("sparktts.models.audio_tokenizer", BiCodecTokenizer=Codec)
    stub("sparktts.utils.file", load_config=lambda file: {"sample_rate": 16000})
    sys.path.insert(0, str(source))
    package_class = import_module("cli.SparkTTS").SparkTTS

    def most_likely(probs: Tensor, num_samples: int) -> Tensor:
        seen.append(probs[0])
        return probs.argmax(-1, keepdim=True)

    torch.multinomial = most_likely  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        spark(Path(folder) / "LLM")
        package = package_class(Path(folder), torch.device("cpu"))
        generate = type(package.model).generate

        def short(**options: Any) -> Tensor:
            seen.clear()
            out: Tensor = generate(package.model, **{**options, "max_new_tokens": LENGTH})
            prompt = options["input_ids"].shape[1]
            probs = [{str(i): round(float(p[i]), 7) for i in p.nonzero()[:, 0].tolist()} for p in seen[:RECORDED]]
            call = {"prompt": out[0, :prompt].tolist(), "tokens": out[0, prompt:].tolist(), "probs": probs}
            found["calls"].append(call)
            return out

        package.model.generate = short
        for text, gender, pitch, speed in CALLS:
            package.inference(text, gender=gender, pitch=pitch, speed=speed)
            speaker, speech = sounds[-1]
            own = {"text": text, "gender": gender, "pitch": pitch, "speed": speed}
            found["calls"][-1] |= own | {"speaker": speaker.flatten().tolist(), "speech": speech[0].tolist()}
    (GOLDEN / "spark.json").write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
