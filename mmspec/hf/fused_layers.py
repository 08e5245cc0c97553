"""The layers of a Llama-like transformers decoder with few launches, for windows that are read by captured calls.

At one token per row a launch takes longer than most of its work. transformers launches about forty kernels per layer:
a norm is six, the rotation ten, a cache update four. Here a layer is seven matrix products, of which two add to the
residual stream in place, two norms, attention, and the kernels of `mmspec.kernels.layers`. Where those of
`mmspec.kernels.linear` are faster than cuBLAS, a layer is five launches: norms, rotation and SwiGLU are part of the
products.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.decoding.plain_modules import add_linear, is_plain
from mmspec.decoding.target import LayerRun
from mmspec.hf.grouped_queries import fold
from mmspec.hf.slot_cache import SlotCache
from mmspec.kernels.backend import choose

# Decoders whose layers are what `fused_features` computes; Qwen2 has biases in three products, Qwen3 norms of queries
# and keys.
_DECODERS = {"LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model", "Emu3TextModel", "CsmBackboneModel"}


def can_fuse(decoder: Any) -> bool:
    """Whether `fused_features` computes what the decoder does, where kernels run."""
    if type(decoder).__name__ not in _DECODERS or not type(decoder).__module__.startswith("transformers.models."):
        return False
    config = decoder.config
    if choose(decoder.device.type) != "triton" or config.hidden_act != "silu" or config._attn_implementation != "sdpa":
        return False
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return False
    head_dim = decoder.layers[0].self_attn.head_dim
    if 2 * decoder.rotary_emb.inv_freq.numel() != head_dim or decoder.training or decoder._compiled_call_impl:
        return False
    return all(p.device == decoder.device and p.dtype == decoder.dtype for p in decoder.parameters()) and all(
        is_plain(module) and module._compiled_call_impl is None for module in decoder.modules()
    )


def fused_features(
    decoder: Any, embeds: Tensor, positions: Tensor, slots: Tensor, mask: Tensor, cache: SlotCache, run: LayerRun
) -> Tensor:
    """Runs the layers and the final norm, as the decoder's `forward`, without gradients.

    Args:
        decoder: The decoder; `can_fuse` is true for it.
        embeds: [R, W, D].
        positions: int64 [R, W], the position ids.
        slots: int64 [R, W], where keys and values are written; those of the running window of `cache`.
        mask: [R or 1, 1, W, end], added to attention scores.
        cache: The KV cache, not quantized, after its first call.
        run: Which layers run, and which states are kept.

    Returns:
        The hidden states after the final norm, [R, W, D].
    """
    from mmspec.kernels import linear  # Triton may be missing
    from mmspec.kernels.attention import attend, pays
    from mmspec.kernels.layers import rms_norm, rotate_halves_and_store, swiglu

    def norm(x: Tensor, module: Any) -> Tensor:
        return rms_norm(x, module.weight, module.variance_epsilon)

    def by_head(x: Tensor, module: Any) -> Tensor:
        return norm(x.unflatten(-1, (-1, len(module.weight))), module).flatten(2)

    of_heads = hasattr(decoder.layers[0].self_attn, "q_norm")
    # Products are added to it in place, row by row: in the order of any embedding they would be lost.
    h, rows, end = embeds.clone(memory_format=torch.contiguous_format), len(embeds), cache.window.end
    cos, sin = decoder.rotary_emb(embeds, position_ids=positions)
    for i, (layer, stored) in enumerate(zip(decoder.layers, cache.layers, strict=True)):
        run.keep(i, h)
        if not run.runs(i):
            h = run.skip(i, h).contiguous()
            continue
        attention, mlp = layer.self_attn, layer.mlp
        keys, values = stored.keys[:rows], stored.values[:rows]
        three = attention.q_proj, attention.k_proj, attention.v_proj
        others = attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj
        biases = [one.bias for one in three if one.bias is not None]
        usual = not of_heads and len(biases) in (0, 3) and mlp.gate_proj.bias is None and mlp.up_proj.bias is None
        few_rows = usual and linear.pays(h, *(one.weight for one in three + others))
        if few_rows:
            first, weights = layer.input_layernorm, [one.weight for one in three]
            q = linear.qkv(
                h, first.weight, first.variance_epsilon, weights, biases, cos, sin, slots, keys, values, True
            )
        else:
            normed = norm(h, layer.input_layernorm)
            q, k, v = (_product(normed, one) for one in three)
            if of_heads:
                q, k = by_head(q, attention.q_norm), by_head(k, attention.k_norm)
            q = rotate_halves_and_store(q, k, v, cos, sin, slots, keys, values)
        q = q.transpose(1, 2)
        seen = keys[:, :, :end], values[:, :, :end]
        if pays(q, seen[0], mask):
            out = attend(q, *seen, mask, attention.scaling, early=few_rows)
        elif keys.shape[1] < q.shape[1]:
            out = fold(q, *seen, mask, attention.scaling).transpose(1, 2).flatten(2)
        else:
            attended = F.scaled_dot_product_attention(q, *seen, attn_mask=mask, scale=attention.scaling)
            out = attended.transpose(1, 2).flatten(2)
        if few_rows:
            linear.add_linear(h, out, attention.o_proj.weight, attention.o_proj.bias)
            second, gate, up = layer.post_attention_layernorm, mlp.gate_proj.weight, mlp.up_proj.weight
            gated = linear.swiglu_linear(h, second.weight, second.variance_epsilon, gate, up)
            linear.add_linear(h, gated, mlp.down_proj.weight, mlp.down_proj.bias)
            continue
        add_linear(h, out, attention.o_proj)
        normed = norm(h, layer.post_attention_layernorm)
        add_linear(h, swiglu(_product(normed, mlp.gate_proj), _product(normed, mlp.up_proj)), mlp.down_proj)
    h = norm(h, decoder.norm)
    run.keep(len(decoder.layers), h)  # as transformers, which counts the norm to the last layer
    return h


def _product(x: Tensor, linear: nn.Linear) -> Tensor:
    return F.linear(x, linear.weight, linear.bias)
