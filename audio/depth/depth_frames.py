"""A backbone with a depth decoder, its prompts given: what `depth_decoding` and `frame_windows` decode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmspec.audio.depth.captured_depth import CapturedDepth, DepthGraphs
from mmspec.audio.depth.depth_target import DepthDecoder, DepthTarget
from mmspec.decoding.processed_target import LogitsProcessor
from mmspec.decoding.target import cache_bytes, read_window
from mmspec.hf.causal_target import Backbone, CausalTarget, Prompt, with_cuda_graphs
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.rows import PerRow, RowNames


class DepthFrames:
    """A backbone and its depth decoder, with their prompts given.

    It is a `mmspec.audio.depth.depth_decoding.FrameModel` and a `mmspec.audio.depth.frame_windows.FrameWindowModel`.

    Args:
        backbone: The backbone. It embeds frames int64 [B, n, 1 + D] as [B, n, width], and its head returns the logits
            of first tokens; the depth decoder has at most as many codes.
        decoder: The depth decoder.
        length: Frames to generate.
        slack: How many frames a window may reach past the end.
        processors: Functions of the first tokens so far and the logits of the next one, in order; none with guidance.
            The first one takes what the head returns, the last one returns logits of first tokens.
        uncond: The unconditional prompts, for guidance of first tokens and codes; None turns guidance off.

    Attributes:
        codes: D, tokens of a frame after the first.
        vocab_size: V, of first tokens and codes alike.
        device: Where its tensors are.
        reader: The parts of the depth decoder that read a window.
    """

    ROWS: ClassVar[RowNames] = ("_target", "_length", PerRow("_firsts", fill=-1))
    SAME: ClassVar[tuple[str, ...]] = ("_backbone.decoder", "_processors")

    def __init__(
        self,
        backbone: Backbone,
        decoder: DepthDecoder,
        prompt: Prompt,
        length: int,
        slack: int = 0,
        processors: Sequence[LogitsProcessor] = (),
        uncond: Prompt | None = None,
    ) -> None:
        assert uncond is None or not processors
        self.vocab_size = backbone.vocab_size
        self.codes = decoder.codebooks - 1
        self.device = backbone.device
        self._backbone, self._decoder, self._processors = backbone, decoder, tuple(processors)
        self.reader = decoder.reader
        rows = len(prompt.mask)
        self._length = Numbers(np.zeros(rows, dtype=np.int64))
        # One more frame than can be read: the decoding loop may look at the end of the last window.
        self._firsts = torch.full((rows, length + slack + 1), -1, dtype=torch.int64, device=self.device)
        self._factor = 1 if uncond is None else 2
        backbone = replace(backbone, cell=(decoder.codebooks,))
        self._target = with_cuda_graphs(CausalTarget(backbone, prompt, uncond, length, slack))
        # A window of `slack` frames that begins inside of a frame touches one more.
        self._graphs = DepthGraphs(decoder.module, rows * (1 + slack))

    def start(self) -> Logits:
        return self._processed(self._target.prefill(), Numbers(np.full((len(self._firsts), 1), -1)))

    def step(self, frame: Tensor) -> Logits:
        at = self._length.uploaded(self.device)
        logits = self.read(frame[:, None], at)
        self._length = at.plus(1)
        return logits

    def depth(self, first: Tensor, start: int, window: int) -> DepthTarget | CapturedDepth:
        return self._graphs.of(self._depth(self._target.features()[:, -1], first, start, window))

    def read(self, frames: Tensor, at: Numbers) -> Logits:
        numbers = at
        if self._processors:
            numbers = at.window(0, frames.shape[1], self.device)
            self._firsts.scatter_(1, numbers.on(self.device), frames[..., 0])
        return self._processed(read_window(self._target, frames, at), numbers)

    def hidden(self) -> Tensor:
        features = self._target.features()
        return features if self._factor == 1 else torch.cat(features.chunk(2), dim=-1)

    def rest(self, hidden: Tensor, frames: Tensor, at: NDArray[np.int64]) -> Logits:
        by_frame, flat = hidden.flatten(0, 1), frames.flatten(0, 1)
        if self._factor == 2:
            by_frame = torch.cat(by_frame.chunk(2, dim=-1))
        depth = self._graphs.of(self._depth(by_frame, flat[:, :1], 0, 0))
        logits = by_row(depth.whole(flat), frames.shape[1])
        missing = self.vocab_size - logits.cond.shape[-1]
        if not missing:
            return logits
        wide = [None if z is None else F.pad(z.float(), (0, missing), value=-torch.inf) for z in logits]
        assert wide[0] is not None
        return Logits(wide[0], wide[1])

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV cache."""
        return cache_bytes(self._target)

    def _depth(self, hidden: Tensor, first: Tensor, start: int, window: int) -> DepthTarget:
        """The codes of one frame; arguments as in `DepthTarget`."""
        return DepthTarget(self._decoder, hidden, first, start, window)

    def _processed(self, logits: Logits, last: Numbers) -> Logits:
        """Logits [B, n, V] after frames number `last`, [B, n], with the processors applied; these alone read `last`."""
        if not self._processors:
            return logits
        prefixes = self._prefixes(last.on(self.device)).flatten(0, 1)
        z = logits.cond.float()
        flat = z.flatten(0, 1)
        for process in self._processors:
            flat = process(prefixes, flat)
        return Logits(flat.unflatten(0, z.shape[:2]), None)

    def _prefixes(self, numbers: Tensor) -> Tensor:
        """The first tokens int64 [B, n, L] of the frames up to numbers int64 [B, n], -1 before the first frame."""
        index = numbers[..., None] - torch.arange(self._firsts.shape[1] - 1, -1, -1, device=self.device)
        firsts = self._firsts[:, None].expand(-1, numbers.shape[1], -1)
        return firsts.gather(2, index.clamp(min=0)).masked_fill(index < 0, -1)


def by_row(logits: Logits, frames: int) -> Logits:
    """Logits [B * frames, D, V] of the codes of frames as [B, frames * D, V]."""
    cond, uncond = (None if z is None else z.unflatten(0, (-1, frames)).flatten(1, 2) for z in logits)
    assert cond is not None
    return Logits(cond, uncond)


def same_length(rows: Sequence[Tensor]) -> Tensor:
    """Embeddings [n, D] of each row as one tensor [B, n, D]; shorter ones repeat their last."""
    longest = max(map(len, rows))
    return torch.stack([torch.cat([row, row[-1:].expand(longest - len(row), -1)]) for row in rows])


def left_padded(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows [T, D] as [B, T, D], padded on the left with zeros, and a mask bool [B, T] that is False on padding."""
    longest = max(map(len, rows))
    embeds = torch.stack([F.pad(row, (0, 0, longest - len(row), 0)) for row in rows])
    lengths = torch.tensor([[len(row)] for row in rows], device=embeds.device)
    return embeds, torch.arange(longest, device=embeds.device) >= longest - lengths
