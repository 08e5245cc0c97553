"""The choice of the operations on probabilities, which a batch and its samplers make once."""

from __future__ import annotations

import torch

from mmspec.kernels.backend import choose
from mmspec.sampling.ops import TORCH, TorchOps


def ops_on(device: torch.device) -> TorchOps:
    """The operations where a batch, or a sampler, has its tensors."""
    if choose(device.type) != "triton":
        return TORCH
    from mmspec.sampling.kernel_ops import KERNELS  # Triton may be missing, and takes its time on a CPU

    return KERNELS
