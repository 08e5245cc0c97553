"""Records what the package soprano-tts computes for a tiny model; writes tests/golden/soprano.json.

Run with the folder that contains the package (`soprano` of soprano-tts 0.2.0) as the only argument; it needs `inflect`
and `unidecode`. Its limit of 512 tokens is lowered.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from golden import GOLDEN
from tiny_soprano import HIDDEN, INNER, LAYERS, WIDTH, decoder_state, model, tokenizer
from torch import Tensor

TEXTS = [
    "Hello, world! This is the second sentence. A third one is long enough to stay. No.",
    "one?",
    "It is without an end",
]
SAMPLING = {"top_p": 0.95, "temperature": 0.7, "repetition_penalty": 1.2}
TOKENS, EVERY = 14, 301


def main(source: Path) -> None:
    for name in ("soprano", "soprano.utils", "soprano.backends", "soprano.vocos"):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [str(source.joinpath(*name.split(".")))]
    from soprano.backends.transformers import TransformersModel
    from soprano.tts import SopranoTTS
    from soprano.vocos.decoder import SopranoDecoder

    inner = SopranoDecoder(WIDTH, LAYERS, INNER, HIDDEN)
    inner.load_state_dict(decoder_state())
    tts, pipeline = SopranoTTS.__new__(SopranoTTS), TransformersModel.__new__(TransformersModel)
    pipeline.device, pipeline.model, pipeline.tokenizer = "cpu", model(), tokenizer()
    tts.device, tts.pipeline, tts.decoder, tts.decoder_batch_size, tts.TOKEN_SIZE = "cpu", pipeline, inner, 1, 2048
    own, made = pipeline.model.generate, []

    def generate(**arguments: Any) -> Any:
        out = own(**{**arguments, "max_new_tokens": TOKENS})
        made.append(out.sequences[0, arguments["input_ids"].shape[1] :].tolist())
        return out

    pipeline.model.generate = generate
    seen: list[Tensor] = []
    sample = torch.multinomial

    def watched(probs: Tensor, num_samples: int) -> Tensor:
        seen.append(probs[0])
        return probs.argmax(-1, keepdim=True)

    torch.multinomial = watched  # type: ignore[assignment]
    found: dict[str, Any] = {"texts": TEXTS, "sampling": SAMPLING, "parts": [], "greedy": [], "audio": [], "probs": []}
    for text in TEXTS:
        prompts = [each[0] for each in tts._preprocess_text([text])]
        found["parts"].append([tokenizer()(prompt)["input_ids"] for prompt in prompts])
        made.clear()
        # One part at a time: in a batch the package takes the hidden states of padding for those of tokens.
        audio = []
        for prompt in prompts:
            tts._preprocess_text = lambda texts, prompt=prompt: [(prompt, 0, 0)]
            audio.append(tts.infer_batch([prompt])[0])
        del tts._preprocess_text
        found["greedy"].append(list(made))
        whole = torch.cat(audio)
        found["audio"].append({"length": len(whole), "samples": [round(float(x), 6) for x in whole[::EVERY]]})
        seen.clear()
        pipeline.infer(prompts[:1], **SAMPLING)
        found["probs"].append([{str(i): round(float(p[i]), 7) for i in p.nonzero()[:, 0].tolist()} for p in seen[:6]])
        found.setdefault("sampled", []).append(made[-1][:6])
    torch.multinomial = sample
    file = GOLDEN / "soprano.json"
    file.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
