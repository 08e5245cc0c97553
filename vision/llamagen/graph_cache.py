"""Recorded calls that outlive the image they were recorded for: the next ones of the same shapes take them over."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.decoding.cuda_graphs import CUDAGraphTarget, GraphCache, wanted
from mmspec.vision.llamagen.gpt import LlamaGenGPT
from mmspec.vision.llamagen.target import LlamaGenTarget

_MOST = 2  # kept for a model: each has a cache of its own
_LARGEST = 2**30  # bytes of tensors kept; with larger batches recording is a small part of the time
_ROUND = 64  # slots


@dataclass
class _Kept:
    """Recorded calls; `user` is the target that has them now.

    A graph knows weights and tensors by their addresses, so that it lasts as long as they stay where they are.
    """

    weights: list[int]
    tensors: list[Tensor]
    recording: GraphCache
    user: weakref.ref[CUDAGraphTarget]

    def fits(self, target: LlamaGenTarget) -> bool:
        """Whether nobody uses them, and the target is of the shapes they were recorded for."""
        shapes = [(t.shape, t.dtype, t.device) for t in target.tensors()]
        return self.user() is None and shapes == [(t.shape, t.dtype, t.device) for t in self.tensors]


_KEPT: weakref.WeakKeyDictionary[LlamaGenGPT, list[_Kept]] = weakref.WeakKeyDictionary()


def new_target(
    gpt: LlamaGenGPT, condition: Tensor, uncond: Tensor | None, mask: Tensor | None, slack: int
) -> LlamaGenTarget | CUDAGraphTarget:
    """A `LlamaGenTarget` of these arguments, read by recorded calls where its device has them."""
    if not wanted(gpt.device) or _movable(gpt):
        return LlamaGenTarget(gpt, condition, uncond, mask, slack)
    # Rounded up, so that recipes with different windows have the same shapes.
    slack += -(gpt.config.cls_token_num + gpt.config.grid_size**2 + slack) % _ROUND
    # What is kept may be written in inference mode and outside of it, and its tensors then must be ordinary ones.
    with torch.inference_mode(False), torch.no_grad():
        target = LlamaGenTarget(gpt, condition, uncond, mask, slack)
    weights = [p.data_ptr() for p in gpt.parameters()]
    if sum(t.nbytes for t in target.tensors()) > _LARGEST or 0 in weights:  # 0: packed, and its address is not known
        return CUDAGraphTarget(target)
    kept = _KEPT.setdefault(gpt, [])
    kept[:] = [old for old in kept if old.weights == weights]
    found = next((old for old in kept if old.fits(target)), None)
    recording = GraphCache() if found is None else found.recording
    if found is not None:
        target.take_over(found.tensors)
        kept.remove(found)
    user = CUDAGraphTarget(target, recording)
    kept.append(_Kept(weights, target.tensors(), recording, weakref.ref(user)))
    del kept[:-_MOST]
    return user


def _movable(gpt: LlamaGenGPT) -> bool:
    """Whether something hooked into a module brings its weights or casts them, so that no call is like the next."""
    return any(hasattr(m, "_hf_hook") or hasattr(m, "_diffusers_hook") for m in gpt.modules())
