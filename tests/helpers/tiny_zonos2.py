"""A folder of a tiny ZONOS2 in its published form, and a codec of its codes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tiny_chatterbox import MeanLevels
from torch import Tensor

LIKELY = {0: 1016, 2: 768}  # codes by codebook
BOOKS, CODES, WIDTH, INNER, EXPERTS, ROUTER, VOICE = 3, 1024, 32, 48, 4, 16, 12
Codec = partial(MeanLevels, BOOKS, CODES)
# Texts with their options in the original's words, and whether they have a voice.
PROMPTS: list[tuple[str, dict[str, Any], bool]] = [
    ("one two three", {}, False),
    ("Zwölf?", {"speaking_rate_bucket": 2, "quality_buckets": {"noise": 1}}, False),
    ("one", {"clean_speaker_background": True}, True),
    ("one, two.", {"accurate_mode": False, "quality_buckets": {}}, True),
]


def config() -> dict[str, Any]:
    return {
        "model_type": "zonos2", "n_layers": 4, "dim": WIDTH, "head_dim": 64, "n_heads": 2, "n_kv_heads": 1,
        "ffn_dim_multiplier": 1.3, "multiple_of": 16, "rope_theta": 10000.0, "max_seqlen": 1024,
        "n_codebooks": BOOKS, "codebook_size": CODES, "eoa_id": CODES, "audio_pad_id": CODES + 1, "text_vocab": 461,
        "speaker_enabled": True, "speaker_embedding_dim": VOICE, "speaker_lda_dim": 8,
        "speaker_background_token_enabled": True, "accurate_mode_token_enabled": True, "speaking_rate_num_buckets": 4,
        "quality_buckets": {"noise": ["0", "1"], "trailing_silence_s": ["0", "1", "2", "3"]},
        "moe_n_experts": EXPERTS, "moe_router_topk": 2, "special_topk_layers": {"2": 1}, "moe_router_dim": ROUTER,
        "moe_start_from_layer": 1, "moe_end_from_layer": 1, "moe_balancing_strategy": "quantile",
    }  # fmt: skip


def voice() -> Tensor:
    return torch.arange(VOICE).sin()


def state() -> dict[str, Tensor]:
    """The published weights: experts of one layer in each of two forms, and a weight of training alone."""
    queries, keys = (WIDTH, 128), (2, 64, WIDTH)
    shapes: dict[str, tuple[int, ...]] = {f"multi_embedder.embedders.{k}.weight": (CODES + 2, WIDTH) for k in range(3)}
    shapes |= {"multi_embedder.embedders.3.weight": (462, WIDTH), "out_norm.weight": (WIDTH,)}
    shapes |= {"speaker_lda_projection.weight": (8, VOICE), "speaker_lda_projection.bias": (8,)}
    shapes |= {"speaker_projection.weight": (WIDTH, 8), "speaker_projection.bias": (WIDTH,)}
    shapes["multi_output.weight"] = (BOOKS * (CODES + 2), WIDTH)
    for n in range(4):
        at = f"layers.{n}."
        shapes |= {f"{at}attention_norm.weight": (WIDTH,), f"{at}ffn_norm.weight": (WIDTH,)}
        shapes |= {f"{at}attention.wq.weight": queries[::-1], f"{at}attention.wo.weight": queries}
        shapes |= {f"{at}attention.wkv.weight": keys, f"{at}attention.gater.weight": (2, WIDTH)}
        if n in (0, 3):
            shapes |= {
                f"{at}feed_forward.w_in.weight": (2, INNER, WIDTH),
                f"{at}feed_forward.w_out.weight": (WIDTH, INNER),
            }
            continue
        router, experts = f"{at}feed_forward.router.", f"{at}feed_forward.experts."
        shapes |= {f"{router}down_proj.weight": (ROUTER, WIDTH), f"{router}down_proj.bias": (ROUTER,)}
        for step in (0, 2):
            shapes |= {
                f"{router}router_mlp.{step}.weight": (ROUTER, ROUTER),
                f"{router}router_mlp.{step}.bias": (ROUTER,),
            }
        shapes |= {f"{router}router_mlp.4.weight": (EXPERTS, ROUTER), f"{router}rmsnorm_eda.weight": (ROUTER,)}
        if n == 2:
            shapes[f"{router}router_states_scale"] = (ROUTER,)
            shapes |= {f"{experts}w13": (EXPERTS, 2 * INNER, WIDTH), f"{experts}w2": (EXPERTS, WIDTH, INNER)}
        else:
            shapes |= {f"{experts}{name}.weight": (EXPERTS, INNER, WIDTH) for name in ("w1", "w3")}
            shapes[f"{experts}w2.weight"] = (EXPERTS, WIDTH, INNER)
        shapes[f"{router}balancing_biases"] = (EXPERTS,)
        shapes[f"{router}ent_denom"] = (1,)
    found = {name: _filled(name, shape) for name, shape in shapes.items()}
    for n in range(4):  # the original's are of bfloat16
        found[f"layers.{n}.attention.parametrizations.temp.original"] = torch.tensor([1.25, -0.75]).view(1, 2, 1)
    for n in (1, 2):
        found[f"layers.{n}.feed_forward.router.balancing_biases"] = torch.tensor([0.2, 0.0, -0.1, 0.05])
    # A codebook ends where its likely codes have been penalized.
    head = found["multi_output.weight"].view(BOOKS, CODES + 2, WIDTH)
    for book, code in LIKELY.items():
        head[book, CODES] = 0.95 * head[book, code]
    return found


def _filled(name: str, shape: tuple[int, ...]) -> Tensor:
    n = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    value = ((n * 12.9898 + sum(map(ord, name))).sin() * 43758.5453 % 1 - 0.5).float().view(shape)
    return 1 + 0.2 * value if "norm" in name or "scale" in name else 0.9 * value


def zonos2(folder: Path) -> Path:
    """The folder."""
    folder.mkdir(exist_ok=True)
    (folder / "params.json").write_text(json.dumps({"model": config()}))
    torch.save({"model": state()}, folder / "model.pth")
    return folder
