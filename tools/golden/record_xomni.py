"""Records what the original code of X-Omni computes with tiny weights; writes tests/golden/xomni.json.

Run with transformers 4 (4.46.3 was used), and as the only argument the folder with `modeling_xomni.py` and
`configuration_xomni.py` of a published repository. What they import to encode and draw images stands in here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from golden import GOLDEN
from tiny_xomni import HEIGHT, PROMPTS, WIDTH, fill, sizes, tokenizer
from transformers import GenerationConfig

NAMES = {
    "modeling_siglip_tokenizer": ("create_anyres_preprocess", "SiglipTokenizer"),
    "modeling_siglip_flux": ("FluxTransformer2DModelWithSigLIP", "FluxPipelineWithSigLIP"),
    "modeling_siglip_flux_zh": ("FluxTransformer2DModelWithSigLIP", "FluxPipelineWithSigLIP"),
    "modeling_vit": ("create_siglip_vit",),
}


def main(source: Path) -> None:
    package = ModuleType("xomni")
    package.__path__ = [str(source)]
    sys.modules["xomni"] = package
    for name, members in NAMES.items():
        module: Any = ModuleType(f"xomni.{name}")
        for member in members:
            setattr(module, member, None)
        sys.modules[module.__name__] = module
    from xomni.configuration_xomni import XOmniConfig
    from xomni.modeling_xomni import XOmniForCausalLM

    config = XOmniConfig(**sizes(), attn_implementation="eager")
    model, names = XOmniForCausalLM(config).eval(), tokenizer()
    fill(model.named_parameters())
    model.set_generation_mode("image")
    prefix = f"<SOM>{HEIGHT} {WIDTH}<IMAGE>"
    negative = names.encode(prefix, add_special_tokens=False, return_tensors="pt")
    found: dict[str, Any] = {"keys": sorted(model.state_dict()), "negative": negative[0].tolist(), "ids": []}
    for scale in (1.0, 3.0):
        rows, probs = [], []
        for prompt in PROMPTS:
            tokens = names([prompt + prefix], return_tensors="pt")
            common = {"max_new_tokens": HEIGHT * WIDTH, "guidance_scale": scale, "pad_token_id": 256}
            suppress = names.convert_tokens_to_ids(config.mm_special_tokens)
            inputs = {"attention_mask": tokens.attention_mask, "negative_prompt_ids": negative}
            greedy = GenerationConfig(do_sample=False, suppress_tokens=suppress, **common)
            out = model.generate(inputs=tokens.input_ids, generation_config=greedy, **inputs)
            rows.append((out[0, tokens.input_ids.shape[1] :] - config.vocab_size).tolist())
            sampled = GenerationConfig(
                do_sample=True, temperature=0.9, top_k=9, min_p=0.05, top_p=0.95, suppress_tokens=suppress,
                return_dict_in_generate=True, output_scores=True, **common,
            )  # fmt: skip
            torch.manual_seed(0)
            scores = model.generate(inputs=tokens.input_ids, generation_config=sampled, **inputs).scores[0]
            p = scores[0, config.vocab_size :].softmax(-1)
            probs.append({str(int(i)): round(float(p[i]), 6) for i in p.nonzero()[:, 0]})
            if scale == 1:
                found["ids"].append(tokens.input_ids[0].tolist())
        found[f"greedy_{scale:g}"], found[f"first_{scale:g}"] = rows, probs
    file = GOLDEN / "xomni.json"
    file.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with torch.no_grad():
        main(Path(sys.argv[1]))
