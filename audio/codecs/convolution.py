"""How far a stack of convolutions looks."""

from __future__ import annotations

import math

from torch import nn


def reach(layers: nn.Module) -> int:
    """How many frames apart an output of `layers` and a frame that it depends on can be, at most.

    Args:
        layers: Registered in the order in which they run; frames come in, samples go out.
    """
    frames, samples_per_frame = 0.0, 1
    for layer in layers.modules():
        if isinstance(layer, nn.ConvTranspose1d):
            frames += layer.kernel_size[0] / layer.stride[0] / samples_per_frame
            samples_per_frame *= layer.stride[0]
        elif isinstance(layer, nn.Conv1d):
            frames += (layer.kernel_size[0] - 1) * layer.dilation[0] / samples_per_frame
    return math.ceil(frames) + 1
