"""Some layers of a codec's decoder as a `mmspec.audio.codec.FrameDecoder`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class CodecPart:
    """Layers that `mmspec.audio.codec.OverlapStream` can run.

    Args:
        layers: Features [B, D, F] to [B, channels, F * hop].
        hop: Outputs per frame.
        channels: Channels of the outputs.
    """

    def __init__(self, layers: Callable[[Tensor], Tensor], hop: int, channels: int) -> None:
        self.hop = hop
        self.channels = channels
        self._layers = layers

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        return self._layers(codes)
