"""Records what the package outetts computes for a tiny OuteTTS 1.0; writes tests/golden/outetts.json.

Run with the folder that contains the package as the only argument. Of it, the prompts of its interface of version 3 and
its model of transformers are imported.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from golden import GOLDEN
from tiny_outetts import SPEAKER, model, tokenizer
from torch import Tensor

TEXTS: list[tuple[str, bool]] = [
    ("Hello ,  world... It 's \u201cme\u201d!!", False),
    ("One\u2014two", True),
    ("a:b can ' t", False),
]
LENGTH, RECORDED = 24, 8


def main(source: Path) -> None:
    for name in ("outetts", "outetts.models", "outetts.version", "outetts.version.v3", "outetts.utils", "loguru"):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [str(source.joinpath(*name.split(".")))]

    class Silent:
        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: None

    sys.modules["loguru"].logger = Silent()  # type: ignore[attr-defined]
    sys.modules["outetts.utils"].helpers = None  # type: ignore[attr-defined]
    sys.modules["outetts.models.info"] = ModuleType("outetts.models.info")
    sys.modules["outetts.models.info"].__dict__.update(
        GenerationType=type("Types", (), {"CHUNKED": 1, "STREAM": 2}),
        Backend=type("Backend", (), {"HF": 1}),
        InterfaceVersion=type("Versions", (), {"V3": 3}),
        Models=None,
        LlamaCppQuantization=None,
    )
    sys.modules["outetts.models"].info = sys.modules["outetts.models.info"]  # type: ignore[attr-defined]
    from outetts.models import hf_model
    from outetts.models.config import GenerationConfig, SamplerConfig
    from outetts.models.hf_model import HFModel
    from outetts.version.v3.prompt_processor import PromptProcessor

    # transformers passes an argument that its class of the penalty does not know.
    penalty = hf_model.RepetitionPenaltyLogitsProcessorPatch
    hf_model.generation_utils.RepetitionPenaltyLogitsProcessor = lambda penalty_value=None, **more: penalty(
        more.get("penalty", penalty_value)
    )
    prompts = PromptProcessor("")
    prompts.tokenizer = tokenizer()
    prompts.get_audio_token_map()
    own = HFModel.__new__(HFModel)
    own.model = model()
    seen: list[Tensor] = []

    def most_likely(probs: Tensor, num_samples: int) -> Tensor:
        seen.append(probs[0])
        return probs.argmax(-1, keepdim=True)

    torch.multinomial = most_likely  # type: ignore[assignment]
    found: dict[str, Any] = {"texts": TEXTS, "prompts": [], "greedy": [], "frames": [], "probs": []}
    for text, spoken in TEXTS:
        prompt = prompts.get_completion_prompt(text, copy.deepcopy(SPEAKER) if spoken else None)
        ids = prompts.tokenizer.encode(prompt, add_special_tokens=False, return_tensors="pt")
        found["prompts"].append(ids[0].tolist())
        seen.clear()
        sampler = SamplerConfig()
        out = own.generate(ids, GenerationConfig(text, sampler_config=sampler, max_length=ids.shape[1] + LENGTH))
        made = out[ids.shape[1] :]
        found["greedy"].append(made)
        found["frames"].append(prompts.extract_audio_from_tokens(made))
        found["probs"].append(
            [{str(i): round(float(p[i]), 7) for i in p.nonzero()[:, 0].tolist()} for p in seen[:RECORDED]]
        )
    file = GOLDEN / "outetts.json"
    file.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
