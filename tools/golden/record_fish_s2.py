"""Records what the parts of Fish S2 Pro in SGLang-Omni compute for a tiny model; writes tests/golden/fish_s2.json.

Run with the folder of the unpacked package sglang-omni, and a folder with the three files of
`fishaudio_s2_pro/fish_speech/models/text2semantic` of its repository at 2489a10, which has the whole model as modules
of torch. Prompts and the sampling of first codes are the package's, the two transformers those of the older files;
their attention kernel is replaced by torch's attention, and the rounding of logits to bfloat16 is left out. For the
most likely codes the temperature after codes that repeat is 0 too.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from golden import GOLDEN
from tiny_fish_s2 import BOOKS, CODES, IDS, TEXTS, VOICE, config, tokenizer, weights
from torch import Tensor, nn

FRAMES = 12
SAMPLING = {"temperature": 0.8, "top_k": 8, "top_p": 0.8, "repetition_penalty": 1.1}
FIRSTS = [3, 5, 3, 7, 7, 1, 2, 4, 9, 3]  # of the path along which probabilities are recorded
NAME = "sglang_omni.models.fishaudio_s2_pro"


def stub(name: str, **attributes: Any) -> Any:
    module: Any = ModuleType(name)
    for key, value in attributes.items():
        setattr(module, key, value)
    sys.modules[name] = module
    return module


def attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, cache_seqlens: Tensor, **_: Any
) -> Tensor:
    """Causal attention over a cache [B, N, heads, D], into which the keys and values are written."""
    start, count = int(cache_seqlens[0]), q.shape[1]
    k_cache[:, start : start + count], v_cache[:, start : start + count] = k, v
    seen = torch.arange(start + count) <= torch.arange(start, start + count)[:, None]
    q, k, v = (each.transpose(1, 2) for each in (q, k_cache[:, : start + count], v_cache[:, : start + count]))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True).transpose(1, 2)


def load(source: Path, modules: Path) -> tuple[Any, Any, Any, Any]:
    """The class of the whole model, its configuration, the class that samples, and the prompts."""
    for name in ("sglang_omni", "sglang_omni.models", NAME):
        stub(name, __path__=[str(source / name.replace(".", "/"))])
    text = f"{NAME}.fish_speech.models.text2semantic"
    stub(text, __path__=[str(modules)])
    for name in (f"{NAME}.fish_speech.models", "sglang_omni.vendor", "sglang_omni.vendor.sglang", "sgl_kernel"):
        stub(name, __path__=[])
    stub(f"{NAME}.fish_speech", __path__=[str(source / NAME.replace(".", "/") / "fish_speech")])
    stub("sgl_kernel.flash_attn", flash_attn_with_kvcache=attention)
    for name in ("sglang", "sglang.srt", "sglang.srt.layers", "sglang.srt.layers.quantization"):
        stub(name, __path__=[])
    stub("sglang.srt.layers.logits_processor", LogitsProcessorOutput=object)
    stub("sglang.srt.layers.quantization.base_config", QuantizationConfig=object)
    stub("sglang.srt.layers.sampler", multinomial_with_seed=lambda p, *_: torch.zeros(len(p), 1, dtype=torch.int64))
    layers = ("MergedColumnParallelLinear", "QKVParallelLinear", "RadixAttention", "RMSNorm", "RowParallelLinear")
    used = {name: object for name in (*layers, "VocabParallelEmbedding", "get_rope")}
    stub("sglang_omni.vendor.sglang.layers", **used)
    stub("sglang_omni.vendor.sglang.core", ForwardBatch=object)
    stub("sglang_omni.vendor.sglang.models", apply_qk_norm=None)
    stub("sglang_omni.vendor.sglang.utils", make_layers=None)
    model: Any = import_module(f"{text}.modeling")
    model.flash_attn_kvcache_op = attention
    code = (source / NAME.replace(".", "/") / "sglang_model.py").read_text()
    sampler: Any = ModuleType(f"{NAME}.sglang_model")
    exec(code.replace(".to(torch.bfloat16).to(torch.float32)", ""), sampler.__dict__)
    omni = model.FishQwen3OmniForCausalLM
    return (
        omni,
        import_module(f"{text}.configuration"),
        sampler.S2ProSGLangTextModel,
        import_module(f"{NAME}.tokenizer"),
    )


def main(source: Path, modules: Path) -> None:
    omni, configuration, sampling, texts = load(source, modules)
    model = omni(configuration.FishQwen3OmniConfig(**{k: v for k, v in config().items() if k != "model_type"})).float()
    missing, unknown = model.load_state_dict(weights(), strict=False)
    assert not unknown and all("lm_head" in name for name in missing), (missing, unknown)
    model.eval().setup_caches(1, 128, torch.float32)
    first = IDS["<|semantic:0|>"]

    def sampler() -> Any:
        made = sampling.__new__(sampling)
        nn.Module.__init__(made)
        made.vocab_size, made.embed_tokens = config()["text_config"]["vocab_size"], model.text_model.model.embeddings
        sizes = {"num_codebooks": BOOKS, "codebook_size": CODES, "max_batch_size": 1, "rep_history_len": 16}
        ids = {"semantic_begin_id": first, "semantic_end_id": first + CODES - 1, "im_end_token_id": IDS["<|im_end|>"]}
        made.setup_vq_decode(model.audio_decoder, **sizes, **ids)
        made.sampling_rep_penalty.fill_(SAMPLING["repetition_penalty"])
        return made

    adapter, voice = texts.S2ProTokenizerAdapter(tokenizer()), torch.tensor(VOICE).T
    prompts = [
        adapter.build_prompt(text, references, num_codebooks=BOOKS, speaker=speaker)
        for text, references, speaker in (
            (TEXTS[0], None, 0),
            (TEXTS[1], [texts.Reference(b"", "one", voice)], 0),
            (TEXTS[2].removeprefix("<|speaker:1|>"), [texts.Reference(b"", "", voice)], 1),
        )
    ]
    found: dict[str, Any] = {"sampling": SAMPLING, "firsts": FIRSTS, "greedy": []}
    found["prompts"] = [torch.where(each["vq_mask_tokens"], -1, each["input_ids"]).tolist() for each in prompts]

    def frames(prompt: Any, count: int, forced: list[int] | None = None) -> list[list[int]]:
        """The frames of a prompt; `forced` are their first codes, which are then not those that were sampled."""
        own, out = sampler(), list[list[int]]()
        own.sampling_temperature.fill_(SAMPLING["temperature"] if forced else 0.0)
        if not forced:
            own.ras_temperature.fill_(0.0)
        own.sampling_top_p.fill_(SAMPLING["top_p"])
        own.sampling_top_k.fill_(int(SAMPLING["top_k"]) if forced else 30)
        model.reset_caches()
        ids, parts = prompt["input_ids"].long()[None], prompt["vq_parts"]
        codes = torch.cat(parts, dim=1).T.long() if parts else None
        embeds = model.embed(ids, codes, prompt["vq_mask_tokens"][None] if parts else None)
        at = torch.arange(ids.shape[1])
        for number in range(count):
            made = model.forward_kvcached(ids, at, embeds)
            own.decode_codebooks(made.token_logits[:, -1], made.token_hidden_states[:, -1])
            token, row = own.output_codes[:, :1].clone(), own.output_codes[:, 1:].clone()
            if forced:
                token[:], row = first + forced[number], along(made.token_hidden_states[:, -1], forced[number])
            if int(token) == IDS["<|im_end|>"]:
                break
            out.append(row[0].tolist())
            own.prev_tokens[0, min(number, 15)] = int(token)
            own.prev_token_count.fill_(number + 1)
            ids, embeds, at = token, model.embed_one_token(token, row), at[-1:] + 1
        return out

    residual: list[Any] = []

    def along(hidden: Tensor, code: int) -> Tensor:
        """The most likely codes after a first one; their probabilities are kept."""
        decoder, row = model.audio_decoder, [code]
        decoder.reset_caches()
        decoder.forward_kvcached(hidden[:, None], 0)
        for book in range(1, BOOKS):
            z = decoder.forward_kvcached(decoder.embeddings(torch.tensor([[row[-1]]])), book)[0, 0]
            residual.append([round(p, 6) for p in z.softmax(-1).tolist()])
            row.append(int(z.argmax()))
        return torch.tensor([row])

    with torch.no_grad():
        found["greedy"] = [frames(prompt, FRAMES) for prompt in prompts]
        tops: list[Tensor] = []
        probs: list[Tensor] = []
        topk, multinomial = torch.topk, torch.multinomial

        def recorded_topk(*args: Any, **named: Any) -> Any:
            out = topk(*args, **named)
            tops.append(out[1][0])
            return out

        def recorded_multinomial(p: Tensor, **named: Any) -> Tensor:
            probs.append(p[0])
            return multinomial(p, **named)

        torch.manual_seed(0)
        with patch.object(torch, "topk", recorded_topk), patch.object(torch, "multinomial", recorded_multinomial):
            found["path"] = frames(prompts[1], len(FIRSTS), FIRSTS)
        whole = [torch.zeros(40).scatter(0, ids, p) for ids, p in zip(tops, probs, strict=True)]
        order = [*range(first, first + CODES), IDS["<|im_end|>"]]
        found["probs"] = [[round(p, 6) for p in each[order].tolist()] for each in whole]
        found["residual"] = residual
    file = GOLDEN / "fish_s2.json"
    file.write_text(json.dumps(found) + "\n", encoding="utf-8")
    for row in found["greedy"]:
        print(len(row), row)
    print(found["prompts"], [sum(p > 0 for p in each) for each in found["probs"]])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
