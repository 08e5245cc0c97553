"""Records what the original Infinity computes with tiny weights, greedy, in float32.

PYTHONPATH=tests/helpers python tools/golden/record_infinity.py FOLDER

FOLDER is that of https://github.com/FoundationVision/Infinity, 2024-12, MIT.
Packages for CUDA and for training are replaced; cross-attention is computed row by row. Needs TORCHDYNAMO_DISABLE=1.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from golden import GOLDEN
from safetensors.torch import save_file
from torch import Tensor

sys.path.insert(0, sys.argv[1])
from infinity_weights import BITS, CHUNKS, DEPTH, DIM, HEADS, LENGTHS, LONGEST, SIZES, TEXT, texts, weight

GUIDANCE = 3.0


def attend(q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, softmax_scale: float, **_: Any) -> Tensor:
    rows = []
    for i in range(len(cu_seqlens_q) - 1):
        mine = q[cu_seqlens_q[i] : cu_seqlens_q[i + 1]].transpose(0, 1)
        k, v = kv[cu_seqlens_k[i] : cu_seqlens_k[i + 1]].permute(1, 2, 0, 3)
        rows.append(((mine @ k.transpose(1, 2) * softmax_scale).softmax(-1) @ v).transpose(0, 1))
    return torch.cat(rows)


def stub(name: str, **members: Any) -> None:
    module = ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module


def never(q: Any = None) -> None:
    raise AssertionError("not called")


stub("flash_attn", flash_attn_func=never, flash_attn_varlen_kvpacked_func=attend)
stub("timm")
stub("pytz")
stub("timm.models", register_model=lambda f: f)
stub("timm.models.layers", DropPath=torch.nn.Identity, drop_path=never)
stub("infinity.utils.misc")
stub("infinity.models.flex_attn", FlexAttn=None)
models = ModuleType("infinity.models")
models.__path__ = [f"{sys.argv[1]}/infinity/models"]
sys.modules["infinity.models"] = models

# The layers of the original, with cross-attention in float32 in place of bfloat16.
basic = ModuleType("infinity.models.basic")
sys.modules["infinity.models.basic"] = basic
source = Path(sys.argv[1], "infinity", "models", "basic.py").read_text(encoding="utf-8")
exec(compile(source.replace("torch.bfloat16", "torch.float32"), "basic.py", "exec"), basic.__dict__)

from infinity.models.infinity import Infinity  # noqa: E402


def to_codes(bits: Tensor, label_type: str) -> Tensor:
    """The quantizer's codes, with the values of `LFQ.indices_to_codes` for bits."""
    scale = 1 / math.sqrt(BITS)
    return F.normalize(bits.float() * scale * 2 - scale, dim=-1).movedim(-1, 1)


kept: dict[str, Tensor] = {}


def decode(latents: Tensor) -> Tensor:
    kept["latents"] = latents.float().contiguous()
    return torch.zeros(len(latents), 3, 4, 4)


lfq = SimpleNamespace(mask=None, indices_to_codes=to_codes)
quantizer = SimpleNamespace(lfq=lfq, z_interplote_up="trilinear", z_interplote_down="area")
vae = SimpleNamespace(embed_dim=BITS, vocab_size=2**BITS, quantizer=quantizer, decode=decode)
model = Infinity(
    vae, text_channels=TEXT, text_maxlen=LONGEST, embed_dim=DIM, depth=DEPTH, num_heads=HEADS, mlp_ratio=8.0,
    shared_aln=True, fused_norm=True, block_chunks=CHUNKS, pad_to_multiplier=128, rope2d_each_sa_layer=1,
    rope2d_normalized_by_hw=2, pn="1M", train_h_div_w_list=[1.0], inference_mode=True,
).eval()  # fmt: skip
state = {key: weight(key, value.shape) for key, value in model.state_dict().items() if "zero_k_bias" not in key}
print(torch.nn.Module.load_state_dict(model, state, strict=False))
schedule = [(1, *size) for size in SIZES]
grid = model.rope2d_freqs_grid
whole = next(key for key in grid if key.startswith("((1, 1, 1), (1, 2, 2), (1, 4, 4), (1, 6, 6), (1, 8, 8)"))
grid[str(tuple(schedule))] = grid[whole]
rows = texts()
lengths = torch.tensor([0, *LENGTHS], dtype=torch.int32).cumsum(0).int()
logits: list[Tensor] = []
original = model.get_logits


def record(h: Tensor, condition: Tensor) -> Tensor:
    out = original(h, condition)
    logits.append(out.clone())
    return out


model.get_logits = record
model.autoregressive_infer_cfg(
    vae=vae, scale_schedule=schedule, label_B_or_BLT=(torch.cat(rows), list(LENGTHS), lengths, max(LENGTHS)), B=2,
    cfg_list=[GUIDANCE] * len(SIZES), tau_list=[1.0] * len(SIZES), top_k=1, cfg_insertion_layer=[0], vae_type=BITS,
    returns_vemb=1, ret_img=True, inference_mode=True,
)  # fmt: skip
cond, uncond = logits[-1].chunk(2)
kept["logits"] = (GUIDANCE * cond + (1 - GUIDANCE) * uncond).unflatten(-1, (-1, 2)).float().contiguous()
kept["first"] = logits[0].unflatten(-1, (-1, 2)).float().contiguous()
folder = GOLDEN / "infinity"
folder.mkdir(exist_ok=True)
save_file(kept, folder / "expected.safetensors")
