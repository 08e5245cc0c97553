"""Receptive field of a stack of convolutions."""

from __future__ import annotations

import math

from torch import nn


def receptive_field(layers: nn.Module) -> int:
    """An upper bound of the distance, in frames, between an output of `layers` and a frame that it depends on.

    Args:
        layers: Registered in the order in which they run; frames go in, samples come out.
    """
    frames, samples_per_frame = 0.0, 1
    for layer in layers.modules():
        if isinstance(layer, nn.ConvTranspose1d):
            frames += layer.kernel_size[0] / layer.stride[0] / samples_per_frame
            samples_per_frame *= layer.stride[0]
        elif isinstance(layer, nn.Conv1d):
            frames += (layer.kernel_size[0] - 1) * layer.dilation[0] / samples_per_frame
    return math.ceil(frames) + 1
