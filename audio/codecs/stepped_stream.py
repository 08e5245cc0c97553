"""Streams of causal codecs: chunks of any length, cut on a CUDA device into sizes whose calls are CUDA graphs.

The layers have a state of fixed size (`mmspec.audio.codecs.streamed_layers`), so that the call of a size is the same at
every place in the audio. The state belongs to the stream; the graphs live with the codec's model
(`mmspec.decoding.kept_graphs`), and a later stream of as many rows takes over the state's tensors, set to zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.audio.codecs.streamed_layers import StreamState
from mmspec.decoding.captured_calls import GraphCache
from mmspec.decoding.graph_capture import use_cuda_graphs
from mmspec.decoding.kept_graphs import use_kept_graphs
from mmspec.hf.causal_target import is_dispatched

SIZES = (8, 1)  # frames of the captured calls

# Makes of a stream's state the function of a chunk: codes [B, K, f] on the device to audio [B, channels, f * hop].
Build = Callable[[StreamState], Callable[[Tensor], Tensor]]


class CodecSteps:
    """The calls of a stream. It is a `mmspec.decoding.kept_graphs.Reusable`.

    Args:
        build: Makes the function of a chunk.
        codes: Like the codes of a chunk, [B, K, f].
        device: Of the codec.
    """

    def __init__(self, build: Build, codes: Tensor, device: torch.device) -> None:
        self.device, self.rows = device, len(codes)
        self._build, self._like = build, codes
        self._state = StreamState(self.rows, device)
        self._decode: Callable[[Tensor], Tensor] | None = None
        self.input: Tensor | None = None

    def shapes(self) -> tuple[Any, ...]:
        return *self._like.shape[:2], self._like.dtype

    def tensors(self) -> list[Tensor]:
        return self._state.tensors

    def take_over(self, tensors: list[Tensor]) -> None:
        self._state = StreamState(self.rows, self.device, tensors)

    def begin(self) -> None:
        """Sets the state to zeros."""
        if self._decode is None:
            self.input = self._state.zeros(self._like.shape[1], max(SIZES), dtype=self._like.dtype)
            self._decode = self._build(self._state)
        self._state.clear()

    def decode(self, codes: Tensor) -> Tensor:
        """The audio of the next frames, [B, K, f] on the device."""
        assert self._decode is not None
        return self._decode(codes)

    def read(self, tokens: Tensor, slots: Tensor, end: int, early_exit: object = None) -> tuple[Tensor, Tensor]:
        """The audio of the next frames in `input`, twice; see `mmspec.decoding.cuda_graphs.Read`.

        Args:
            tokens: As wide as the chunk; not used, like the others.
        """
        assert self.input is not None
        audio = self.decode(self.input[..., : tokens.shape[1]])
        return audio, audio


class CapturedSteps:
    """The calls of a stream, captured.

    Args:
        steps: The calls.
    """

    give_back: Callable[[], object] | None = None

    def __init__(self, steps: CodecSteps, graphs: GraphCache | None) -> None:
        self._steps, self._graphs = steps, graphs or GraphCache()
        steps.begin()
        for size in SIZES:
            self._call(size)
        steps.begin()  # to capture a call is to run it
        self._graphs.tensors = steps.tensors()

    def decode(self, codes: Tensor) -> Tensor:
        pieces, first = list[Tensor](), 0
        while first < codes.shape[-1]:
            left = codes.shape[-1] - first
            size = next(size for size in SIZES if size <= left)
            call = self._call(size)
            if call is None:  # so are all
                return self._steps.decode(codes)
            assert self._steps.input is not None
            self._steps.input[..., :size].copy_(codes[..., first : first + size])
            pieces.append(call(self._steps.read)[0].clone())  # the next call overwrites it
            first += size
        return torch.cat(pieces, dim=-1)

    def _call(self, size: int) -> Any:
        return self._graphs.call(self._steps.read, self._steps.rows, size, size, self._steps.device)


class SteppedStream:
    """Streams a causal codec, without a delay. It is a `mmspec.audio.codec.CodecStream`.

    Args:
        module: The codec's model, with which graphs live.
        build: Makes the function of a chunk.
        channels: Channels of the audio.
        device: Of the codec.
    """

    def __init__(self, module: nn.Module, build: Build, channels: int, device: torch.device) -> None:
        self._module, self._build, self._channels, self._device = module, build, channels, device
        self._steps: CodecSteps | CapturedSteps | None = None
        self._rows = 0

    @torch.inference_mode()
    def push(self, codes: Tensor) -> Tensor:
        self._rows = len(codes)
        if not codes.shape[-1]:
            return self.finish()
        if self._steps is None:
            self._steps = self._begin(codes)
        return self._steps.decode(codes.to(self._device)).float()

    @torch.inference_mode()
    def whole(self, codes: Tensor, chunk: int) -> Tensor:
        """The audio of a clip, apart from what has been pushed, in eager calls of `chunk` frames."""
        if not codes.shape[-1]:
            return torch.empty(len(codes), self._channels, 0)
        steps = CodecSteps(self._build, codes, self._device)
        steps.begin()
        pieces = codes.to(self._device).split(chunk, dim=-1)
        return torch.cat([steps.decode(piece) for piece in pieces], dim=-1).float()

    def finish(self) -> Tensor:
        return torch.empty(self._rows, self._channels, 0)

    def _begin(self, codes: Tensor) -> CodecSteps | CapturedSteps:
        steps = CodecSteps(self._build, codes, self._device)
        if use_cuda_graphs(self._device) and not is_dispatched(self._module, self._device):
            return use_kept_graphs(CapturedSteps, steps, self._module)
        steps.begin()
        return steps
