"""CUDA graphs that are reused by later calls with the same shapes."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.decoding.cuda_graphs import CUDAGraphTarget, GraphCache, use_cuda_graphs
from mmspec.vision.llamagen.target import LlamaGenTarget
from mmspec.vision.llamagen.transformer import LlamaGenTransformer

_MAX_KEPT = 2  # sets of graphs per model; each has a KV cache
_MAX_BYTES = 2**30  # of the tensors of a set; with larger batches capturing takes a small part of the time
_ROUND = 64  # slots


@dataclass(eq=False)
class _Kept:
    """A set of CUDA graphs.

    A graph refers to weights and tensors by address, so it is valid as long as these stay in place.

    Attributes:
        weights: Addresses of the weights.
        tensors: The tensors that the graphs read and write; see `LlamaGenTarget.tensors`.
        graphs: The graphs.
        user: The target that uses them now.
    """

    weights: list[int]
    tensors: list[Tensor]
    graphs: GraphCache
    user: weakref.ref[CUDAGraphTarget]

    def fits(self, target: LlamaGenTarget) -> bool:
        """Whether the graphs are not in use, and were captured for a target of the same shapes."""
        shapes = [(t.shape, t.dtype, t.device) for t in target.tensors()]
        return self.user() is None and shapes == [(t.shape, t.dtype, t.device) for t in self.tensors]


_KEPT: weakref.WeakKeyDictionary[LlamaGenTransformer, list[_Kept]] = weakref.WeakKeyDictionary()


def new_target(
    gpt: LlamaGenTransformer, condition: Tensor, uncond: Tensor | None, mask: Tensor | None, slack: int
) -> LlamaGenTarget | CUDAGraphTarget:
    """A `LlamaGenTarget` of these arguments, with its windows captured in CUDA graphs on a CUDA device."""
    if gpt.cell or not use_cuda_graphs(gpt.device) or _hooked(gpt):  # captured windows have one token per slot
        return LlamaGenTarget(gpt, condition, uncond, mask, slack)
    # Rounded up, so that recipes with different windows have the same shapes.
    slack += -(gpt.config.cls_token_num + gpt.config.grid_size**2 + slack) % _ROUND
    # Ordinary tensors, because later calls may write to them outside of inference mode.
    with torch.inference_mode(False), torch.no_grad():
        target = LlamaGenTarget(gpt, condition, uncond, mask, slack)
    weights = [p.data_ptr() for p in gpt.parameters()]
    # Packed weights have no address (0), and adapters can be switched without a change of addresses.
    if (
        sum(t.nbytes for t in target.tensors()) > _MAX_BYTES
        or 0 in weights
        or getattr(gpt, "_hf_peft_config_loaded", False)
    ):
        return CUDAGraphTarget(target)
    kept = _KEPT.setdefault(gpt, [])
    kept[:] = [old for old in kept if old.weights == weights]
    found = next((old for old in kept if old.fits(target)), None)
    graphs = GraphCache() if found is None else found.graphs
    if found is not None:
        target.take_over(found.tensors)
        kept.remove(found)
    user = CUDAGraphTarget(target, graphs)
    kept.append(_Kept(weights, target.tensors(), graphs, weakref.ref(user)))
    del kept[:-_MAX_KEPT]
    return user


def _hooked(gpt: LlamaGenTransformer) -> bool:
    """Whether a hook of accelerate or diffusers moves or casts weights, which rules out CUDA graphs."""
    return any(hasattr(m, "_hf_hook") or hasattr(m, "_diffusers_hook") for m in gpt.modules())
