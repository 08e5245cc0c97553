"""Records what the package step-audio2 computes for a tiny model; writes tests/golden/step_audio2.json.

Run with the folder of the package (that of `stepaudio2.py` of step-audio2 1.0.0) as the only argument. Its model is
code of the Hub; its half that reads and writes tokens is a Qwen2, which takes its place. Its reading of audio is
replaced too, and the generator of random numbers: the most likely token is taken.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import tiny_step_audio2 as tiny
import torch
from golden import GOLDEN
from torch import Tensor

from mmspec.audio.models.flat.step_audio2 import CODES, READ_ALOUD

TEXTS = ("Hello there.", "What, now?", "Yes", "12")
ARGUMENTS = {"temperature": 0.7, "do_sample": True}  # those of the package's example of speech
LENGTH, RECORDED = 30, 4


def main(source: Path) -> None:
    sys.modules["utils"] = ModuleType("utils")
    names = ("compute_token_num", "load_audio", "log_mel_spectrogram", "padding_mels")
    vars(sys.modules["utils"]).update(dict.fromkeys(names))
    sys.path.insert(0, str(source))
    package_class = import_module("stepaudio2").StepAudio2
    torch.Tensor.cuda = lambda self: self  # type: ignore[assignment,method-assign,misc]
    seen: list[Tensor] = []

    def most_likely(probs: Tensor, num_samples: int) -> Tensor:
        seen.append(probs[0])
        return probs.argmax(-1, keepdim=True)

    torch.multinomial = most_likely  # type: ignore[assignment]
    package, language = package_class.__new__(package_class), tiny.model()
    package.llm_tokenizer = tiny.tokenizer()
    package.eos_token_id = package.llm_tokenizer.convert_tokens_to_ids("<|EOT|>")
    calls: list[dict[str, Any]] = []

    class Model:
        def generate(self, wavs: None, wav_lens: None, **inputs: Any) -> Tensor:
            out: Tensor = language.generate(**inputs)
            prompt = inputs["input_ids"].shape[1]
            calls.append({"prompt": out[0, :prompt].tolist(), "tokens": out[0, prompt:].tolist()})
            return out

    package.llm = Model()
    for text in TEXTS:
        seen.clear()
        _, words, codes = package(
            [
                {"role": "system", "content": READ_ALOUD},
                {"role": "human", "content": text},
                {"role": "assistant", "content": "<tts_start>", "eot": False},
            ],
            max_new_tokens=LENGTH,
            **ARGUMENTS,
        )
        codes = [code for code in codes if code < CODES]  # as the example does
        probs = [{str(i): round(float(p[i]), 7) for i in p.nonzero()[:, 0].tolist()} for p in seen[:RECORDED]]
        calls[-1] |= {"text": text, "codes": codes, "probs": probs}
    found = {"length": LENGTH, "calls": calls}
    (GOLDEN / "step_audio2.json").write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
