"""The layers of a LlamaGen with few launches, for windows that are read by captured calls.

At one token per row a launch takes longer than most of its work. Here a layer is ten launches instead of twenty: five
matrix products, of which two add to the residual stream in place, two norms, attention, and the two kernels of
`mmspec.kernels.layers`. Where `mmspec.kernels.linear` is faster than cuBLAS, a layer is five launches: norms, rotation
and SwiGLU are part of the products.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.decoding.kv_cache import KVCache
from mmspec.decoding.plain_modules import add_linear, is_plain
from mmspec.decoding.target import LayerRun
from mmspec.vision.llamagen.transformer import Block, LlamaGenTransformer


def can_fuse(gpt: LlamaGenTransformer) -> bool:
    """Whether `fused_features` computes what the model does: plain layers of the published kind."""
    if gpt.config.qk_norm:
        return False
    modules = [module for block in gpt.layers for module in block.modules()]
    floating = all(parameter.is_floating_point() for block in gpt.layers for parameter in block.parameters())
    return floating and all(
        is_plain(module) and (not isinstance(module, nn.Linear) or module.bias is None) for module in modules
    )


def fused_features(
    gpt: LlamaGenTransformer,
    h: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    bias: Tensor,
    cache: KVCache,
    end: int,
    run: LayerRun,
) -> Tensor:
    """Runs the blocks and the final norm, as `LlamaGenTransformer.features`, without gradients.

    Args:
        gpt: The model; `can_fuse` is true for it.
        h: Embedded slots [R, W, dim], which are overwritten.
        cos: Rotary rows float32 [R, W, head_dim].
        sin: As `cos`.
        slots: int64 [R, W], where keys and values are written.
        bias: Added to attention scores, broadcast over [R, heads, W, end].
        cache: The KV cache, of R rows, not quantized.
        end: The number of cache slots to read.
        run: Which blocks run, and which states are kept.

    Returns:
        The input of the head, [R, W, dim].
    """
    from mmspec.kernels import linear  # Triton may be missing
    from mmspec.kernels.attention import attend, pays
    from mmspec.kernels.layers import rotate_and_store, swiglu

    eps = gpt.config.norm_eps
    for i, block in enumerate(gpt.layers):
        run.keep(i, h)
        if not run.runs(i):
            h = run.skip(i, h).contiguous()  # products are added to it in place
            continue
        assert isinstance(block, Block)
        attention, feed_forward = block.attention, block.feed_forward
        keys, values = cache.layer(i)
        assert isinstance(keys, Tensor) and isinstance(values, Tensor), "quantized caches are not fused"
        wqkv, w1, w3 = attention.wqkv.weight, feed_forward.w1.weight, feed_forward.w3.weight
        few_rows = linear.pays(h, wqkv, attention.wo.weight, w1, w3, feed_forward.w2.weight)
        if few_rows:
            norm, parts = block.attention_norm.weight, [*wqkv.chunk(3)]
            q = linear.qkv(h, norm, eps, parts, [], cos, sin, slots, keys, values, False)
        else:
            q = rotate_and_store(attention.wqkv(block.attention_norm(h)), cos, sin, slots, keys, values)
        q = q.transpose(1, 2)
        seen = keys[:, :, :end], values[:, :, :end]
        if pays(q, seen[0], bias):
            out = attend(q, *seen, bias, q.shape[-1] ** -0.5, early=few_rows)
        else:
            out = F.scaled_dot_product_attention(q, *seen, attn_mask=bias).transpose(1, 2).flatten(2)
        if few_rows:
            linear.add_linear(h, out, attention.wo.weight)
            gated = linear.swiglu_linear(h, block.ffn_norm.weight, eps, w1, w3)
            linear.add_linear(h, gated, feed_forward.w2.weight)
            continue
        add_linear(h, out, attention.wo)
        normed = block.ffn_norm(h)
        add_linear(h, swiglu(feed_forward.w1(normed), feed_forward.w3(normed)), feed_forward.w2)
    run.keep(len(gpt.layers), h)
    return gpt.norm(h)
