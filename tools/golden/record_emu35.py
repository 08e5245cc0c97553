"""Records what the original code of Emu3.5 answers with tiny weights; writes tests/golden/emu35.json.

Run with transformers 4.46, and the folder of baaivision/Emu3.5 as the only argument. Its ids of marks, which are
constants, are set to those of the tiny vocabulary. Of the first seeds those are taken whose answers have images.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from golden import GOLDEN
from tiny_emu35 import LENGTH, PROMPTS, fill, sizes, tokenizer
from transformers import GenerationConfig, LogitsProcessorList

TEMPLATE = "<|extra_203|>You are a helpful assistant for story task. USER: {question} ASSISTANT: <|extra_100|>"
UNCONDITIONAL = "<|extra_203|>You are a helpful assistant. USER:  ASSISTANT: <|extra_100|>"
WANTED = {"fixed": 3, "chosen": 1}  # answers of each kind


def main(source: Path) -> None:
    sys.path.insert(0, str(source))
    from src.emu3p5 import Emu3Config, Emu3ForCausalLM
    from src.utils import logits_processor as original

    names = tokenizer()
    for constant, mark in {
        "BOS": "<|extra_203|>", "EOS": "<|extra_204|>", "IMG": "<|image token|>", "BOI": "<|image start|>",
        "EOI": "<|image end|>", "EOL": "<|extra_200|>", "EOF": "<|extra_201|>", "BOV": "<|visual token 000000|>",
    }.items():  # fmt: skip
        setattr(original, constant, names.convert_tokens_to_ids(mark))
    found: dict[str, Any] = {"fixed": [], "chosen": []}
    for seed in range(400):
        if all(len(answers) >= WANTED[kind] for kind, answers in found.items()):
            break
        model = Emu3ForCausalLM(Emu3Config(**sizes(), attn_implementation="eager")).eval()
        fill(model.named_parameters(), seed)
        for kind, (height, width) in {"fixed": (2, 3), "chosen": (None, None)}.items():
            prompt = PROMPTS[len(found[kind]) % len(PROMPTS)]
            if len(found[kind]) >= WANTED[kind]:
                continue
            ids = names.encode(TEMPLATE.format(question=prompt), return_tensors="pt", add_special_tokens=False)
            uncond = names.encode(UNCONDITIONAL, return_tensors="pt", add_special_tokens=False)
            kinds = original.UnbatchedClassifierFreeGuidanceLogitsForVisualTokenWithDifferentialTopKProcessor
            # A few tokens show whether there are images at all, and small ones.
            for length in (20, LENGTH[kind]):
                processor = kinds(
                    guidance_scale=3.0, model=model, tokenizer=names, unconditional_ids=uncond,
                    unconditional_type="no_text", target_height=height, target_width=width,
                    use_differential_sampling=True, text_top_k=9, text_top_p=0.9, text_temperature=0.8, image_top_k=7,
                    image_top_p=0.95, image_temperature=1.2,
                )  # fmt: skip
                config = GenerationConfig(
                    do_sample=False, max_new_tokens=length, eos_token_id=original.EOS, pad_token_id=256,
                    return_dict_in_generate=True, output_scores=True,
                )  # fmt: skip
                out = model.generate(ids, config, logits_processor=LogitsProcessorList([processor]))
                new = out.sequences[0, ids.shape[1] :].tolist()
                if processor.image_nums == 0 or processor.height * processor.width > 170:
                    break
            print(seed, kind, processor.image_nums, processor.height, processor.width, len(new), file=sys.stderr)
            if len(new) <= 20:
                continue
            codes = [n for n, token in enumerate(new) if token >= original.BOV]
            if new[0] == original.BOI or len(codes) < 2 * (processor.height or 1) * (processor.width or 1):
                continue
            # The distributions of the first token of text and of the second image's first code.
            second = next(n for n in codes if new[:n].count(original.BOI) == 2)
            probs = [out.scores[n][0].softmax(-1) for n in (0, second)]
            found[kind].append({
                "seed": seed, "prompt": prompt, "ids": ids[0].tolist(), "answer": new, "second": second,
                "probs": [{str(int(i)): round(float(p[i]), 6) for i in p.nonzero()[:, 0]} for p in probs],
            })  # fmt: skip
    print({kind: [(one["seed"], len(one["answer"])) for one in answers] for kind, answers in found.items()})
    file = GOLDEN / "emu35.json"
    file.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with torch.no_grad():
        main(Path(sys.argv[1]))
