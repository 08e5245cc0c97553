"""Overlapping chunks of one length, decoded by a CUDA graph.

A codec with a finite receptive field decodes new frames together with those around them. All of these calls but the
last have the same length here: where frames are missing at the end of a chunk, others are put in their place, on which
no sample that is returned depends. The last chunk ends where the audio ends, and is decoded eagerly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.audio.codec import FrameDecoder, OverlapStream
from mmspec.decoding.captured_calls import GraphCache
from mmspec.decoding.graph_capture import use_cuda_graphs
from mmspec.decoding.kept_graphs import use_kept_graphs
from mmspec.hf.causal_target import is_dispatched

NEW = 16  # new frames of a captured call


class ChunkCall:
    """Decodes a chunk of a fixed length. It is a `mmspec.decoding.kept_graphs.Reusable`.

    Args:
        codec: The decoder.
        codes: Like the codes, [B, ..., n].
        length: Frames of a chunk.
        device: Of the codec.
    """

    def __init__(self, codec: FrameDecoder, codes: Tensor, length: int, device: torch.device) -> None:
        self.device = device
        self.input = torch.zeros(*codes.shape[:-1], length, dtype=codes.dtype, device=device)
        self._codec = codec

    def shapes(self) -> tuple[Any, ...]:
        return *self.input.shape, self.input.dtype

    def tensors(self) -> list[Tensor]:
        return [self.input]

    def take_over(self, tensors: list[Tensor]) -> None:
        [self.input] = tensors

    def read(self, tokens: Tensor, slots: Tensor, end: int, early_exit: object = None) -> tuple[Tensor, Tensor]:
        """The audio of `input`, twice; see `mmspec.decoding.cuda_graphs.Read`, whose arguments are not used."""
        audio = self._codec.decode(self.input)
        return audio, audio


class CapturedChunks:
    """A `mmspec.audio.codec.FrameDecoder` of up to a number of frames, the audio of whose last ones is not valid.

    Args:
        codec: The decoder.
    """

    give_back: Callable[[], object] | None = None

    def __init__(self, chunk: ChunkCall, graphs: GraphCache | None, codec: FrameDecoder) -> None:
        self.channels, self.hop = codec.channels, codec.hop
        self._chunk, self._graphs, self._codec = chunk, graphs or GraphCache(), codec

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        chunk = self._chunk
        length = chunk.input.shape[-1]
        call = self._graphs.call(chunk.read, len(codes), length, length, chunk.device)
        if call is None:
            return self._codec.decode(codes)
        self._graphs.tensors = chunk.tensors()
        chunk.input[..., : codes.shape[-1]].copy_(codes)
        return call(chunk.read)[0].clone()  # the next call overwrites it


class CapturedOverlapStream(OverlapStream):
    """Streams with captured calls; the last one is eager.

    Args:
        module: The codec's model, with which graphs live.
        device: Of the codec.
    """

    def __init__(self, codec: FrameDecoder, module: nn.Module, before: int, after: int, device: torch.device) -> None:
        super().__init__(codec, before, after)
        self._eager, self._module, self._device = codec, module, device
        self._length = before + NEW + after
        self._captured: CapturedChunks | None = None

    def push(self, codes: Tensor) -> Tensor:
        if self._captured is None:
            chunk = ChunkCall(self._eager, codes, self._length, self._device)
            self._captured = self._codec = use_kept_graphs(
                lambda chunk, graphs: CapturedChunks(chunk, graphs, self._eager), chunk, self._module
            )
        pieces = [super(CapturedOverlapStream, self).push(each) for each in codes.split(NEW, dim=-1)]
        made = [piece for piece in pieces if piece.shape[-1]]  # the others are on the CPU
        return torch.cat(made, dim=-1) if made else pieces[0]

    def finish(self) -> Tensor:
        self._codec, self._captured = self._eager, None
        return super().finish()


def overlap_stream(codec: FrameDecoder, module: nn.Module, before: int, after: int) -> OverlapStream:
    """Streams a codec, with captured calls on a CUDA device.

    Args:
        module: The codec's model.
    """
    device = next(module.parameters()).device
    if use_cuda_graphs(device) and not is_dispatched(module, device):
        return CapturedOverlapStream(codec, module, before, after, device)
    return OverlapStream(codec, before, after)
