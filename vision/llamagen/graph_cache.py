"""LlamaGen's targets with CUDA graphs, which are kept with the model."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.decoding.graph_capture import use_cuda_graphs
from mmspec.decoding.target import Target
from mmspec.vision.llamagen.target import LlamaGenTarget
from mmspec.vision.llamagen.transformer import LlamaGenTransformer


def new_target(
    gpt: LlamaGenTransformer, condition: Tensor, uncond: Tensor | None, mask: Tensor | None, slack: int
) -> Target:
    """A `LlamaGenTarget` of these arguments, with its windows captured in CUDA graphs on a CUDA device."""
    if not use_cuda_graphs(gpt.device) or _hooked(gpt):
        return LlamaGenTarget(gpt, condition, uncond, mask, slack)
    from mmspec.decoding.kept_graphs import ROUND, with_kept_graphs

    # Rounded up, so that recipes with different windows have the same shapes.
    slack += -(gpt.config.cls_token_num + gpt.config.grid_size**2 + slack) % ROUND
    # Ordinary tensors, because later calls may write to them outside of inference mode.
    with torch.inference_mode(False), torch.no_grad():
        target = LlamaGenTarget(gpt, condition, uncond, mask, slack)
    return with_kept_graphs(target, gpt)


def _hooked(gpt: LlamaGenTransformer) -> bool:
    """Whether a hook of accelerate or diffusers moves or casts weights, which rules out CUDA graphs."""
    return any(hasattr(m, "_hf_hook") or hasattr(m, "_diffusers_hook") for m in gpt.modules())
