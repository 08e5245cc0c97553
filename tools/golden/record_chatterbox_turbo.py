"""Records what the package chatterbox-tts computes for a tiny Turbo; writes tests/golden/chatterbox_turbo.json.

Run with the folder `src` of github.com/resemble-ai/chatterbox as the only argument. Of the package only its model `T3`
is imported, so that its other dependencies are not needed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from golden import GOLDEN
from tiny_chatterbox import TURBO, state
from torch import Tensor

TEXTS = {"one two three": [20, 31, 40, 7], "two": [30, 7]}
SETTINGS = {"temperature": 0.8, "top_k": 60, "top_p": 0.9}
LENGTH = 10


def main(source: Path) -> None:
    for name in ("chatterbox", "chatterbox.models"):
        module = ModuleType(name)
        module.__path__ = [str(source.joinpath(*name.split(".")))]
        sys.modules[name] = module
    from chatterbox.models.t3.llama_configs import LLAMA_CONFIGS
    from chatterbox.models.t3.modules.cond_enc import T3Cond
    from chatterbox.models.t3.modules.t3_config import T3Config
    from chatterbox.models.t3.t3 import T3

    tiny = {"n_embd": 64, "hidden_size": 64, "n_head": 1, "n_layer": 2, "n_positions": 64, "vocab_size": 8}
    LLAMA_CONFIGS["tiny"] = {**LLAMA_CONFIGS["GPT2_medium"], **tiny}
    config = T3Config(text_tokens_dict_size=50)
    config.llama_config_name, config.speech_tokens_dict_size, config.speaker_embed_size = "tiny", 6563, 8
    config.input_pos_emb, config.use_perceiver_resampler, config.emotion_adv = None, False, False
    model = T3(config)
    model.load_state_dict(state(TURBO))
    model.eval()
    seen: list[Tensor] = []

    def most_likely(probs: Tensor, num_samples: int) -> Tensor:
        seen.append(probs)
        return probs.argmax(-1, keepdim=True)

    torch.multinomial = most_likely  # type: ignore[assignment]
    found: dict[str, Any] = {"settings": SETTINGS, "greedy": {}, "probs": {}, "tokens": {}}
    for text, ids in TEXTS.items():
        for name, settings in (("greedy", {"temperature": 1.0, "top_k": 0, "top_p": 1.0}), ("probs", SETTINGS)):
            cond = T3Cond(
                speaker_emb=torch.linspace(-1, 1, 8)[None],
                cond_prompt_speech_tokens=torch.tensor([[5, 70, 900, 6000, 33]]),
            )
            seen.clear()
            with torch.inference_mode():
                out = model.inference_turbo(cond, torch.tensor([ids]), max_gen_len=LENGTH - 1, **settings)
            if name == "greedy":
                found["greedy"][text] = out[0].tolist()
            else:
                found["tokens"][text] = out[0, :4].tolist()
                found["probs"][text] = [
                    {str(i): round(float(p[0, i]), 7) for i in p[0].nonzero()[:, 0].tolist()} for p in seen[:4]
                ]
    file = GOLDEN / "chatterbox_turbo.json"
    file.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
