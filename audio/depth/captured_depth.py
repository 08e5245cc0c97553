"""The codes of frames by captured calls: CUDA graphs of a depth decoder that serve all frames, and live with the model.

A frame is a decode of its own, of as many tokens as it has codes. Its calls are all alike but for what they begin with,
the hidden state of the backbone and the first code: each frame copies these to where the graphs read them.

Without drafts a whole frame is one graph: the places of its codes are known, so that each step reads the embedding and
the head of its own codebook alone, and samples its code on the device. With drafts the slots of a window are numbers on
the device, so that one graph per width of a window serves every place in a frame.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mmspec.audio.depth.depth_target import DepthTarget
from mmspec.decoding.captured_calls import GraphCache
from mmspec.decoding.graph_capture import use_cuda_graphs
from mmspec.decoding.kept_graphs import Reusable, use_kept_graphs
from mmspec.decoding.target import EarlyExit, Target
from mmspec.hf.causal_target import is_dispatched
from mmspec.kernels.backend import choose
from mmspec.sampling.logits import Logits, split_cfg
from mmspec.sampling.numbers import Numbers, on_device
from mmspec.sampling.rng import RESAMPLE
from mmspec.sampling.sampler import TokenSampler

# The graphs that sample frames, and that read frames whose codes are given: see
# `mmspec.decoding.captured_calls.CapturedPart`.
_FRAME, _WHOLE = "frame", "whole"


class CapturableDepth(Target, Reusable, Protocol):
    """A target of the codes of one frame with a `read` that can be captured.

    Attributes:
        start: The position of the first token that `forward` reads after the slots of the prefill.
        prompt_slots: Slots that the prefill reads, the first ones; position `start + i` has slot `prompt_slots + i`.
        inputs: What a frame begins with, tensors by row.
    """

    start: int
    prompt_slots: int
    inputs: tuple[Tensor, ...]

    @property
    def rows(self) -> int:
        """The number of rows, B."""
        ...

    @property
    def cfg_factor(self) -> int:
        """Cache rows per row of the batch: 2 with guidance, else 1."""
        ...

    @property
    def capacity(self) -> int:
        """Slots per row."""
        ...

    def read(
        self, tokens: Tensor, slots: Tensor, end: int, early_exit: EarlyExit | None = None
    ) -> tuple[Tensor, Tensor]:
        """Tokens in the slots of the prefill are not used."""
        ...

    def code(self, number: int, before: Tensor | None) -> Tensor:
        """The logits [R, 1, V] of one code, with the weights of its own place alone.

        Args:
            number: The number of the code after the first one, from 0 on; those before it have been read.
            before: int64 [B, 1], the code before it; None for number 0, before which is what the frame begins with.
        """
        ...

    def with_rows(self, rows: int) -> Self:
        """A target of as many rows, whose inputs are zeros."""
        ...


Frame = TypeVar("Frame", bound=CapturableDepth)


class DepthGraphs:
    """Where a decode gets the targets of its frames from: captured ones on a CUDA device, else the frames' own.

    Args:
        module: The depth decoder, with which the graphs live.
        rows: The most rows of a frame, as a rule; a frame of fewer rows uses calls of as many.
    """

    def __init__(self, module: nn.Module, rows: int) -> None:
        self._module, self._rows = module, rows
        self._captured: CapturedDepth | None = None
        self._captures: bool | None = None  # whether calls may be captured; asked once, as a module has many parts

    def of(self, frame: Frame) -> Frame | CapturedDepth:
        """A target that reads what `frame` would; the one of the frame before must not be used any more."""
        if self._captures is None:
            self._captures = use_cuda_graphs(frame.device) and not is_dispatched(self._module, frame.device)
        if not self._captures:
            return frame
        self._rows = max(self._rows, frame.rows)
        if self._captured is not None and not self._captured.fits(frame):
            self._captured = None  # it gives its graphs back
        if self._captured is None:
            self._captured = use_kept_graphs(CapturedDepth, frame.with_rows(self._rows), self._module)
        return self._captured.begin(frame)


class CapturedDepth:
    """The codes of frames, one after another, by captured calls.

    It is a `mmspec.decoding.target.Target` and a `mmspec.decoding.target.ReadsAhead`.

    Args:
        target: Has as many rows as any frame.
        graphs: The graphs that are kept for later decodes, whose tensors become those of `target` if there are any;
            None for graphs of this decode alone.

    Attributes:
        reads_finished: Its calls read rows that have ended as well: dropping them would only take time.
    """

    give_back: Callable[[], object] | None = None
    reads_ahead = True
    reads_finished = True

    def __init__(self, target: CapturableDepth, graphs: GraphCache | None) -> None:
        self.vocab_size, self.device = target.vocab_size, target.device
        self._target, self._graphs = target, graphs or GraphCache()
        self._places = torch.arange(target.capacity, device=target.device)
        self._start = target.start
        self._rows: list[int] = []  # of the target, those of the frame that are running
        self._index: slice | Tensor = slice(0)  # the same
        self._settings: tuple[Tensor, ...] | None = None  # the sampling parameters that the graphs of frames have

    def fits(self, frame: CapturableDepth) -> bool:
        """Whether a frame can be read."""
        target = self._target
        same = (target.capacity, target.cfg_factor) == (frame.capacity, frame.cfg_factor)
        return same and frame.rows <= target.rows

    def begin(self, frame: CapturableDepth) -> Self:
        """Begins with what another target would begin with; the rows of its frame are the first ones."""
        count, rows = frame.rows, self._target.rows
        with torch.inference_mode():  # in which tensors of an earlier decode were made
            for own, new in zip(self._target.inputs, frame.inputs, strict=True):
                own.unflatten(0, (-1, rows))[:, :count].copy_(new.unflatten(0, (-1, count)))
        self._start, self._rows, self._index = frame.start, list(range(count)), slice(count)
        return self

    def prefill(self) -> Logits:
        count = self._target.prompt_slots
        return self._read(None, self._slots(0, count), first=count - 1)

    def frame(self, numbers: Numbers, codes: int, sampler: TokenSampler) -> Tensor | None:
        """Samples a whole frame in one graph.

        Args:
            numbers: [B, 2], the seed of each row and the position of its first code.
            codes: D, the codes of a frame.
            sampler: Has the sampling parameters.

        Returns:
            int64 [B, D], -1 where a code has no distribution, and any codes after it; the next frame overwrites them.
            None if the codes must be sampled one by one: the kernels do not run, or do not know such parameters, or the
            loop cannot be captured.
        """
        target, known = self._target, sampler.of_any_slot()
        if known is None or choose(self.device.type) != "triton":
            return None
        settings, cuts = known
        count, loop = len(numbers.host), partial(sample_frame, target)

        def inputs() -> list[Tensor]:
            new = torch.zeros(target.rows, 2, dtype=torch.int64, device=self.device)
            return [new, *(each.new_ones(target.rows, *each.shape[1:]) for each in settings)]

        with torch.inference_mode():  # see `begin`
            call = self._graphs.of(loop, inputs, (codes, *cuts), (codes, *cuts, _FRAME), self.device)
            if call is None:
                return None
            call.inputs[0][:count] = numbers.on(self.device)
            if self._settings is not settings:  # the first frame, or rows have joined or left
                for own, new in zip(call.inputs[1:], settings, strict=True):
                    own[:count] = new
            found: Tensor = call(loop)
            if self._settings is not settings:
                self._settings, self._graphs.tensors = settings, target.tensors()
        return found[:count]

    def whole(self, frame: Tensor) -> Logits:
        target, key = self._target, (*frame.shape[1:], _WHOLE)
        assert isinstance(target, DepthTarget)

        def inputs() -> list[Tensor]:
            return [torch.zeros(target.rows, *frame.shape[1:], dtype=torch.int64, device=self.device)]

        with torch.inference_mode():  # see `begin`
            call = self._graphs.of(target.every_code, inputs, (), key, self.device)
            buffer = inputs()[0] if call is None else call.inputs[0]
            buffer[: len(frame)] = frame
            found = target.every_code(buffer) if call is None else call(target.every_code)
            self._graphs.tensors = self._graphs.tensors or target.tensors()
        found = found.unflatten(0, (-1, target.rows))[:, : len(frame)].flatten(0, 1).clone()
        return split_cfg(found, target.cfg_factor == 2)

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        return self.forward_ahead(tokens, Numbers(at))

    def forward_ahead(self, tokens: Tensor, at: Numbers) -> Logits:
        """As `forward`, for positions that only the device may know; see `mmspec.decoding.target.ReadsAhead`."""
        first, width = self._target.prompt_slots - self._start, tokens.shape[1]
        slot = int(at.host[0]) + first
        if at.there is None and slot >= 0 and (at.host == at.host[0]).all():  # a step of all rows
            slots = self._slots(slot, width)
        else:
            slots = at.on(self.device)[:, None] + torch.arange(first, first + width, device=self.device)
        return self._read(tokens, slots)

    def select_rows(self, row_ids: list[int]) -> None:
        # The other rows are read as well, until the next frame.
        self._rows = [self._rows[row] for row in row_ids]
        self._index = on_device(np.array(self._rows), self.device)

    def _slots(self, first: int, count: int) -> Tensor:
        """The slots from `first` on, int64 [B, count]."""
        return self._places[first : first + count].expand(len(self._rows), count)

    def _read(self, tokens: Tensor | None, slots: Tensor, first: int = 0) -> Logits:
        """Logits [B, W - first, V] of a window int64 [B, W] in slots int64 [B, W]; None for those of the prefill."""
        target, index, width = self._target, self._index, slots.shape[1]
        rows = target.rows * target.cfg_factor
        with torch.inference_mode():  # see `begin`; what is returned is a copy
            # A call that cannot be captured runs in the same way.
            call = self._graphs.call(target.read, rows, width, target.capacity, self.device)
            if call is None:
                own = torch.zeros(2, rows, width, dtype=torch.int64, device=self.device)
                inputs = own[0], own[1]
            else:
                inputs = call.inputs[0], call.inputs[1]
            for buffer, new in zip(inputs, (tokens, slots), strict=True):
                if new is not None:
                    buffer.unflatten(0, (-1, target.rows))[:, index] = new
            out = target.read(*inputs, target.capacity)[0] if call is None else call(target.read)[0]
            if self._graphs.tensors is None:
                self._graphs.tensors = target.tensors()
        found = out.unflatten(0, (-1, target.rows))[:, index, first:].flatten(0, 1)
        # The next call overwrites what this one returns.
        return split_cfg(found.clone() if isinstance(index, slice) else found, target.cfg_factor == 2)


def sample_frame(
    target: CapturableDepth,
    numbers: Tensor,
    scale: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    codes: int,
    cuts_k: bool,
    cuts_p: bool,
) -> Tensor:
    """Samples the codes of a frame, int64 [B, D]; see `CapturedDepth.frame`.

    Args:
        target: Has as many rows as there are numbers.
        numbers: int64 [B, 2], the seed of each row and the position of its first code.
        scale: Like temperature, top_k and top_p a field of `mmspec.kernels.fused_sampler.Settings`.
        codes: D.
        cuts_k: Whether any row has a top-k.
        cuts_p: Whether any row has a top-p.
    """
    from mmspec.kernels.fused_sampler import Settings, fused_sample  # Triton may be missing
    from mmspec.kernels.philox import uniforms

    index = torch.arange(codes, device=target.device).expand(len(numbers), codes)
    seeds, first = numbers.unbind(1)
    # The numbers of a decode along the depth: one position, and one iteration, after another.
    u = uniforms(seeds.contiguous(), first[:, None] + index, index, 0, 1)[RESAMPLE].transpose(0, 1).contiguous()
    settings = Settings(scale, temperature, top_k if cuts_k else None, top_p if cuts_p else None, None, None)
    found, before = list[Tensor](), None
    for number in range(codes):
        logits = split_cfg(target.code(number, before), target.cfg_factor == 2)
        tokens = fused_sample(*logits, settings, u[number]).tokens
        found.append(tokens)
        before = tokens.clamp(min=0)
    return torch.cat(found, dim=1)
