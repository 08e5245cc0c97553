"""Records what Zyphra/ZONOS2 computes for a tiny model; writes tests/golden/zonos2.json.

Run with the folder `python` of its repository as the only argument. Its prompts, model, sampler, requests and alignment
of codebooks are run as they are, one request at a time. In place of what needs a GPU stand: flashinfer's norms and
rotary embedding, the kernels of embeddings and of experts, attention, and the loop of its scheduler, each a few lines.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import torch
import torch.nn.functional as F
from golden import GOLDEN
from tiny_zonos2 import PROMPTS, config, state, voice
from torch import Tensor

COLUMNS, PATH, EVERY = 40, 8, 57
SAMPLINGS: list[dict[str, Any]] = [{}, {"temperature": 0.7, "topk": 40, "top_p": 0.9, "min_p": 0.15}]


def stub(name: str, **attributes: Any) -> None:
    module: Any = ModuleType(name)
    for key, value in attributes.items():
        setattr(module, key, value)
    sys.modules[name] = module


def rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def fused_add_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    residual.add_(x)
    x.copy_(rmsnorm(residual, weight, eps))


def rotate(positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool) -> None:
    assert not is_neox
    cos, sin = cos_sin_cache[positions][:, None].chunk(2, dim=-1)
    for x in (query, key):
        pairs = x.view(len(x), -1, head_size // 2, 2)
        even, odd = pairs[..., 0].clone(), pairs[..., 1].clone()
        pairs[..., 0], pairs[..., 1] = even * cos - odd * sin, even * sin + odd * cos


def fused_experts(
    hidden_states: Tensor, w1: Tensor, w2: Tensor, topk_weights: Tensor, topk_ids: Tensor, **options: Any
) -> Tensor:
    assert options["activation"] == "silu" and not options["apply_router_weight_on_input"]
    rows = []
    for x, weights, ids in zip(hidden_states, topk_weights, topk_ids.tolist(), strict=True):
        outs = []
        for number in ids:
            gate, up = (w1[number] @ x).chunk(2)
            outs.append(w2[number] @ (F.silu(gate) * up))
        rows.append(weights @ torch.stack(outs))
    return torch.stack(rows)


class Attention:
    """Attention of one request, whose keys and values are kept."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layer: int, batch: Any) -> Tensor:
        new = tuple(each.view(len(q), -1, q.shape[-1]) for each in (k, v))
        old = self.kept.get(layer)
        keys, values = new if old is None else (torch.cat(pair) for pair in zip(old, new, strict=True))
        self.kept[layer] = keys, values
        mask = torch.ones(len(q), len(keys), dtype=torch.bool).tril(len(keys) - len(q))
        query, keys, values = (each.transpose(0, 1) for each in (q, keys, values))
        seen = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)
        return seen.transpose(0, 1).contiguous()


class Package:
    """The package's parts, with the weights of `tiny_zonos2.state`."""

    def __init__(self, source: Path) -> None:
        sys.path.insert(0, str(source))
        cuda: Any = torch.cuda
        cuda.nvtx.range, cuda.is_current_stream_capturing = lambda *_, **__: nullcontext(), lambda: False
        for name in ("zonos2.tts", "zonos2.scheduler", "zonos2.engine"):
            stub(name, __path__=[str(source / name.replace(".", "/"))])
        sys.modules["zonos2.scheduler"].SchedulerConfig = object  # type: ignore[attr-defined]
        for name in ("cache", "config", "decode", "table"):
            sys.modules[f"zonos2.scheduler.{name}"] = MagicMock()
        stub("zonos2.scheduler.io", SchedulerIOMixin=object)
        for name in ("zmq", "zmq.asyncio", "msgpack"):
            sys.modules.setdefault(name, MagicMock())
        stub(
            "flashinfer",
            rmsnorm=rmsnorm,
            fused_add_rmsnorm=fused_add_rmsnorm,
            apply_rope_with_cos_sin_cache_inplace=rotate,
        )
        stub("zonos2.kernel", indexing=lambda weights, indices, vocab_range: F.embedding(indices, weights))
        stub("zonos2.layers.moe.fused_moe.fused_moe_impl", fused_experts=fused_experts, fused_moe=None)
        self.core: Any = import_module("zonos2.core")
        import_module("zonos2.distributed").set_tp_info(0, 1)
        hf, weights = import_module("zonos2.utils.hf"), import_module("zonos2.models.weight")
        self.config = import_module("zonos2.models.config").ModelConfig.from_checkpoint_config(
            hf.Zonos2Config(**config())
        )
        self.model = import_module("zonos2.models.zonos2").Zonos2ForCausalLM(self.config)
        self.model.load_state_dict(weights._normalize_zonos2_state_dict(state()))
        samples: Any = import_module("zonos2.engine.sample")
        samples.make_device_tensor = lambda data, dtype, device: torch.tensor(data, dtype=dtype)
        own = self.config
        self.sampler = samples.TTSSampler(torch.device("cpu"), own.n_codebooks, own.codebook_size, own.text_vocab)
        self.shear_up = import_module("zonos2.tokenizer.vocoder").shear_up
        self.Params = import_module("zonos2.message.tts").TTSSamplingParams

    def prompt(self, text: str, options: dict[str, Any], voiced: bool) -> Tensor:
        """The prompt as its server makes it: the options of the tokenizer, then the columns of a voice."""
        llm, own = import_module("zonos2.tts.llm"), self.config
        made = llm.TTSLLM.__new__(llm.TTSLLM)
        made.n_codebooks, made.audio_pad_id, made.text_vocab = own.n_codebooks, own.audio_pad_id, own.text_vocab
        made.quality_features = own.quality_features or tuple(own.quality_buckets)
        made.quality_bucket_counts = [len(own.quality_buckets[each]) for each in made.quality_features]
        made.speaking_rate_num_buckets = own.speaking_rate_num_buckets
        made.speaker_background_num_buckets, made.accurate_mode_num_buckets = 2, 1
        made._prompt_builder = llm.TTSPromptBuilder(
            llm.TTSPromptConfig(
                own.n_codebooks, own.audio_pad_id, own.text_vocab, own.speaking_rate_num_buckets,
                tuple(made.quality_bucket_counts), 2, 1,
            )
        )  # fmt: skip
        rate, quality = options.get("speaking_rate_bucket"), options.get("quality_buckets")
        ids: Tensor = made._tokenize_one(text, rate, quality)
        if not voiced:
            return ids
        message = SimpleNamespace(
            clean_speaker_background=options.get("clean_speaker_background", False),
            accurate_mode=options.get("accurate_mode", True),
        )
        ids = torch.cat([made._prompt_builder.speaker_slot(), ids])
        found: Tensor = made._with_speaker_frames(ids, message, 0)
        return found

    @contextmanager
    def watched(self) -> Iterator[list[Tensor]]:
        """The probabilities of which the sampler samples."""
        probs: list[Tensor] = []
        real = torch.multinomial

        def recorded(p: Tensor, *args: Any, **named: Any) -> Tensor:
            probs.append(p.clone())
            return real(p, *args, **named)

        with patch.object(torch, "multinomial", recorded):
            yield probs

    def run(self, prompt: Tensor, voiced: bool, params: Any, count: int) -> dict[str, Any]:
        """A request, as its scheduler treats it: its columns, its logits, its probabilities, and where it ended."""
        request = self.core.TTSReq(
            prompt, 0, 0, count, 0, params, None, self.config.n_codebooks, self.config.eoa_id,
            speaker_embedding=voice() if voiced else None, speaker_token_position=0,
        )  # fmt: skip
        self.core._GLOBAL_CTX = self.core.Context(1, Attention())
        columns, logits = list[list[int]](), list[Tensor]()
        with self.watched() as probs:
            for _ in range(count):
                batch = self.core.TTSBatch([request], "decode" if columns else "prefill")
                batch.input_ids = request.input_ids[request.cached_len :].int()
                batch.attn_metadata = SimpleNamespace(positions=torch.arange(request.cached_len, request.device_len))
                if voiced and not columns:
                    batch.speaker_emb_values = voice()[None]
                    batch.speaker_token_positions = torch.tensor([0])
                with self.core.get_global_ctx().forward_batch(batch):
                    logits.append(self.model.forward()[-1:])
                next_column = self.sampler.sample_to_tensor(logits[-1], self.sampler.prepare(batch))[0]
                request.complete_one()
                request.append_host(next_column)
                columns.append(next_column[: self.config.n_codebooks].tolist())
                if request.check_eos(columns[-1]):
                    break
        return {"columns": columns, "logits": torch.cat(logits), "probs": probs, "end": request.eos_frame}


def main(source: Path) -> None:
    package = Package(source)
    params = package.Params()
    found: dict[str, Any] = {"defaults": vars(params), "every": EVERY, "prompts": [], "greedy": [], "sampled": []}
    with torch.inference_mode():
        for text, options, voiced in PROMPTS:
            prompt = package.prompt(text, options, voiced)
            found["prompts"].append(prompt.tolist())
            states: list[Tensor] = []
            routers = [layer.feed_forward.router for layer in package.model.layers.op_list if layer.is_moe]
            for router in routers:
                real = router.forward

                def watched(x: Tensor, before: Tensor | None = None, real: Any = real, to: Any = states) -> Any:
                    out = real(x, before)
                    to.append(out[2][-1])
                    return out

                router.forward = watched
            greedy = package.run(prompt, voiced, replace(params, temperature=0.0), COLUMNS)
            for router in routers:
                del router.forward
            logits = greedy["logits"][:PATH, :, ::EVERY].tolist()
            frames = package.shear_up(torch.tensor(greedy["columns"]), package.config.audio_pad_id)
            whole = len(frames) - package.config.n_codebooks + 1
            frames = frames[:whole] if greedy["end"] < 0 else frames[: greedy["end"]]
            found["greedy"].append({
                "columns": greedy["columns"],
                "end": greedy["end"],
                "frames": frames.clamp(max=package.config.codebook_size - 1).tolist(),
                "states": [[round(x, 5) for x in each.tolist()] for each in states[: len(routers)]],
                "logits": [[[round(x, 4) for x in cell] for cell in each] for each in logits],
            })  # fmt: skip
        prompt = torch.tensor(found["prompts"][0], dtype=torch.int32)
        for settings in SAMPLINGS:
            torch.manual_seed(0)
            sampled = package.run(prompt, False, replace(params, **settings), PATH)
            likely = [
                [{str(i): round(float(cell[i]), 6) for i in cell.nonzero().flatten().tolist()} for cell in each]
                for each in sampled["probs"]
            ]
            found["sampled"].append({"settings": settings, "columns": sampled["columns"], "probs": likely})
    (GOLDEN / "zonos2.json").write_text(json.dumps(found) + "\n", encoding="utf-8")
    for each in found["greedy"]:
        print(each["end"], len(each["columns"]), each["columns"])
    for each in found["sampled"]:
        print(each["columns"], [[len(cell) for cell in step] for step in each["probs"]])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
