"""Records what the code of ACE-Step 1.5 computes for a tiny 5 Hz language model; writes tests/golden/ace_step.json.

Run with the root of github.com/ace-step/ACE-Step-1.5 as the only argument; its other modules are not imported.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from golden import GOLDEN
from tiny_ace_step import model, tokenizer
from torch import Tensor

SONGS: list[dict[str, Any]] = [
    {"caption": "calm piano", "lyrics": "[Instrumental]"},
    {"caption": "a loud, fast song", "lyrics": "one two\nthree"},
    {"caption": "rock", "lyrics": "hey", "negative_prompt": "bad noise"},
]
METADATA = {"bpm": "120", "keyscale": "G major", "timesignature": "4/4", "language": "en", "duration": "10"}
SAMPLING = {"temperature": 0.85, "cfg_scale": 2.0, "top_k": 12, "top_p": 0.9}
RECORDED = 5


def main(source: Path) -> None:
    class Silent:
        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: None

    package = ModuleType("acestep")
    package.__path__ = [str(source / "acestep")]
    loguru, gpu = ModuleType("loguru"), ModuleType("acestep.gpu_config")
    loguru.logger = Silent()  # type: ignore[attr-defined]
    for name in ("get_lm_gpu_memory_ratio", "get_gpu_memory_gb", "get_lm_model_size", "get_global_gpu_config"):
        setattr(gpu, name, None)
    sys.modules.update({"acestep": package, "loguru": loguru, "acestep.gpu_config": gpu})
    from acestep.constrained_logits_processor import MetadataConstrainedLogitsProcessor
    from acestep.llm_inference import LLMHandler

    words = tokenizer()
    handler = LLMHandler.__new__(LLMHandler)
    handler.llm, handler.llm_tokenizer, handler.device, handler.disable_tqdm = model(), words, "cpu", True
    handler._load_model_context = nullcontext
    handler.constrained_processor = MetadataConstrainedLogitsProcessor(words)
    seen: list[Tensor] = []

    def most_likely(probs: Tensor, num_samples: int) -> Tensor:
        seen.append(probs[0])
        return probs.argmax(-1, keepdim=True)

    torch.multinomial = most_likely  # type: ignore[assignment]
    first = words.convert_tokens_to_ids("<|audio_code_0|>")
    found: dict[str, Any] = {"songs": SONGS, "metadata": METADATA, "sampling": SAMPLING, "prompts": []}
    found |= {"greedy": [], "sampled": [], "probs": []}
    for song in SONGS:
        negative = song.get("negative_prompt", "NO USER INPUT")
        thought = handler._format_metadata_as_cot(dict(METADATA))
        prompt = handler.build_formatted_prompt_with_cot(song["caption"], song["lyrics"], thought)
        other = handler._build_unconditional_prompt(song["caption"], song["lyrics"], thought, negative, "codes")
        found["prompts"].append([words(prompt)["input_ids"], words(other)["input_ids"]])
        for name, sampling in (("greedy", {**SAMPLING, "temperature": 0.0}), ("sampled", SAMPLING)):
            seen.clear()
            text = handler._run_pt_single(
                formatted_prompt=prompt, negative_prompt=negative, repetition_penalty=1.0,
                use_constrained_decoding=True, constrained_decoding_debug=False, target_duration=10.0,
                user_metadata=None, stop_at_reasoning=False, skip_genres=True, skip_caption=True, skip_language=True,
                generation_phase="codes", caption=song["caption"], lyrics=song["lyrics"], cot_text=thought, **sampling,
            )  # fmt: skip
            codes = [int(code) for code in re.findall(r"<\|audio_code_(\d+)\|>", text)]
            assert text.strip().endswith("<|im_end|>")
            found[name].append(codes if name == "greedy" else codes[:RECORDED])
        found["probs"].append(
            [{str(i - first): round(float(p[i]), 7) for i in p.nonzero()[:, 0].tolist()} for p in seen[:RECORDED]]
        )
    file = GOLDEN / "ace_step.json"
    file.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
