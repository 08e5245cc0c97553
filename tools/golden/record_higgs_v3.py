"""Records what the parts of Higgs TTS 3 in SGLang-Omni compute for a tiny model; writes tests/golden/higgs_v3.json.

Run with the folder of the unpacked package sglang-omni as the only argument. Its prompts, delay pattern, embedding and
head of codes, and sampler are run as they are; around them is the Qwen3 of transformers, one row at a time, in place of
SGLang's, with cosines and sines of rotary embeddings rounded to bfloat16 as its engine rounds them.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from golden import GOLDEN
from tiny_higgs_v3 import BOOKS, CODES, TEXTS, VOICE, config, fill_parts, tokenizer
from torch import Tensor
from transformers import Qwen3Config, Qwen3Model

from mmspec.hf.cache_name import cache_input, cache_of

COLUMNS, SAMPLES, SAMPLED = 16, 4_000, 6
SAMPLING: dict[str, Any] = {"temperature": 1.3, "top_p": 0.9, "top_k": 4}
CELLS = {"early": [(1, 0), (1, 1), (2, 2)], "late": [(3, 0), (4, 1), (4, 2)]}


def stub(name: str, **attributes: Any) -> Any:
    module: Any = ModuleType(name)
    for key, value in attributes.items():
        setattr(module, key, value)
    sys.modules[name] = module
    return module


def main(source: Path) -> None:
    for name in ("sglang_omni", "sglang_omni.models", "sglang_omni.models.higgs_tts", "sglang_omni.utils"):
        stub(name, __path__=[str(source / name.replace(".", "/"))])
    for name in ("sglang", "sglang.srt", "sglang.srt.layers"):
        stub(name, __path__=[])
    stub("sglang.srt.layers.sampler", multinomial_with_seed=None)
    stub("sglang_omni.platforms", current_platform=ModuleType("cpu"))
    sys.modules["sglang_omni.platforms"].current_platform.device_type = "cpu"
    stub("sglang_omni.models.higgs_tts.reset_kernels", reset_sampler_row=None)
    text = (source / "sglang_omni" / "models" / "higgs_tts" / "utils.py").read_text()
    delays = stub("sglang_omni.models.higgs_tts.utils", BOC_ID=CODES, EOC_ID=CODES + 1, torch=torch)
    start = text.index("def apply_delay_pattern")
    exec(text[start : text.index("def delay_pattern_action_mask")], delays.__dict__)
    sampler, modeling, texts = (
        import_module(f"sglang_omni.models.higgs_tts.{name}") for name in ("sampler", "modeling", "text_tokenizer")
    )
    reverse_delay_pattern = import_module("sglang_omni.utils.codec_delay").reverse_delay_pattern

    language = {key: value for key, value in config()["text_config"].items() if value is not None}
    body = Qwen3Model(Qwen3Config(**language, rope_theta=1_000_000.0)).eval()
    embed = modeling.HiggsFusedMultiTextEmbedding(BOOKS, CODES + 2, body.config.hidden_size)
    head = modeling.HiggsFusedMultiTextHead(BOOKS, CODES + 2, body.config.hidden_size)
    fill_parts(body, embed.weight)
    head.weight = embed.weight
    rotary = body.rotary_emb.forward
    body.rotary_emb.forward = lambda x, at: tuple(each.bfloat16().float() for each in rotary(x, at))
    adapter = texts.HiggsTokenizerAdapter(tokenizer())
    voice = delays.apply_delay_pattern(torch.tensor(VOICE))
    prompts = [
        adapter.build_prompt(TEXTS[0]),
        adapter.build_prompt(TEXTS[1], num_ref_tokens=len(voice)),
        adapter.build_prompt(TEXTS[2], num_ref_tokens=len(voice), reference_text="one"),
    ]
    found: dict[str, Any] = {"sampling": SAMPLING, "prompts": prompts, "greedy": [], "frames": []}

    def embedded(ids: list[int]) -> Tensor:
        embeds = body.embed_tokens(torch.tensor(ids).clamp(min=0)).clone()
        places = torch.tensor(ids) < 0
        embeds[places] = embed(voice)[: int(places.sum())]
        return embeds[None]

    def rows(ids: list[int], count: int, batch: int, **how: Any) -> list[list[list[int]]]:
        states = [sampler.HiggsSamplerState(BOOKS) for _ in range(batch)]
        out: list[list[list[int]]] = [[] for _ in range(batch)]
        made = body(inputs_embeds=embedded(ids).expand(batch, -1, -1), use_cache=True)
        for _ in range(count):
            logits = head.generate(made.last_hidden_state[:, -1])
            last = torch.zeros(batch, BOOKS, dtype=torch.int64)
            for row, state in enumerate(states):
                codes = sampler.step(logits[row], state, boc_id=CODES, eoc_id=CODES + 1, **how)
                if int(codes[0]) != sampler.STOP_CODE:
                    out[row].append(codes.tolist())
                last[row] = codes.clamp(min=0)
            past = cache_input(body, cache_of(made))
            made = body(inputs_embeds=embed(last)[:, None], use_cache=True, **past)
        return out

    with torch.no_grad():
        for ids in prompts:
            (columns,) = rows(ids, COLUMNS, 1, temperature=0.0)
            found["greedy"].append(columns)
            raw = reverse_delay_pattern(torch.tensor(columns))
            found["frames"].append(torch.where(raw >= CODES, 0, raw).tolist())
        torch.manual_seed(0)
        sampled = rows(prompts[0], SAMPLED, SAMPLES, **SAMPLING)
        found["lengths"] = dict(sorted(Counter(map(len, sampled)).items()))
        found["samples"] = {
            name: dict(Counter(" ".join(str(row[t][k]) if t < len(row) else "-" for t, k in cells) for row in sampled))
            for name, cells in CELLS.items()
        }
        # The probabilities of the first prompt along its first sampled columns.
        probs: list[Tensor] = []
        real = Tensor.multinomial

        def recorded(self: Tensor, *args: Any, **named: Any) -> Tensor:
            probs.append(self.clone())
            return real(self, *args, **named)

        path = next(row for row in sampled if len(row) == SAMPLED)
        found["path"] = path
        made = body(inputs_embeds=embedded(prompts[0]), use_cache=True)
        with patch.object(Tensor, "multinomial", recorded):
            for column in path:
                sampler.sample_independent(head.generate(made.last_hidden_state[:, -1])[0], **SAMPLING)
                embeds = embed(torch.tensor(column)[None, None])
                made = body(inputs_embeds=embeds, use_cache=True, **cache_input(body, cache_of(made)))
        found["probs"] = [[[round(p, 6) for p in cell] for cell in each.tolist()] for each in probs]
    file = GOLDEN / "higgs_v3.json"
    file.write_text(json.dumps(found) + "\n", encoding="utf-8")
    for row in found["greedy"]:
        print(len(row), row)
    print(found["lengths"], {name: len(each) for name, each in found["samples"].items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
