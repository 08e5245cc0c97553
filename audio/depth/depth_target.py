"""A depth decoder as a target: the codes of one frame after the first, each from its codebook's embedding and head.

CSM, Qwen3-TTS and the talker of Qwen3-Omni have decoders of this kind. Those whose weights depend on the position,
like Moshi's, have targets of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mmspec.decoding.attention_masks import additive_mask
from mmspec.decoding.target import EarlyExit
from mmspec.hf.slot_cache import SlotCache
from mmspec.sampling.logits import Logits, split_cfg
from mmspec.sampling.numbers import on_device


class DepthDecoder(Protocol):
    """A transformer over the codes of a frame.

    It reads the backbone's hidden state, and then code after code. None of its methods reads values of tensors on the
    host, so that calls of it can be captured in CUDA graphs; what they compute depends on the arguments and `module`
    alone.

    Attributes:
        vocab_size: V, of the codes after the first.
        codebooks: K, codes of a frame.
    """

    vocab_size: int
    codebooks: int

    @property
    def module(self) -> nn.Module:
        """The module whose weights it calls."""
        ...

    @property
    def reader(self) -> nn.Module:
        """The parts of `module` that `run` and `head` call: what a window reads, besides embeddings."""
        ...

    def embed(self, tokens: Tensor, books: Tensor | int) -> Tensor:
        """Codes int64 [B, W] of codebooks `books`, int64 [B, W] or one for all, 0 to K - 1, to embeddings [B, W, D].

        D is the width of the backbone's hidden states. Codes that do not exist must not fail: a draft may have them.
        """
        ...

    def run(self, embeds: Tensor, mask: Tensor, positions: Tensor, cache: SlotCache) -> Tensor:
        """Embeddings [B, W, D] to hidden states [B, W, H].

        Args:
            embeds: The backbone's hidden state and embeddings of codes.
            mask: Added to the attention scores, [B, 1, W, end].
            positions: int64 [B, W].
            cache: The KV cache, at the slots of this call.
        """
        ...

    def head(self, hidden: Tensor, heads: Tensor | int) -> Tensor:
        """Hidden states [B, W, H] to logits [B, W, V], by heads `heads`, int64 [B, W] or one for all, 0 to K - 2."""
        ...


class DepthTarget:
    """The codes of one frame after the first; a `mmspec.audio.depth.captured_depth.CapturableDepth`.

    Slot 0 of its KV cache holds the backbone's hidden state, slot 1 the first code, slot 2 the code of position
    `start`. With guidance the decoder runs on the hidden states of conditional and unconditional rows, which read the
    same codes; R is then 2 * B, else B.

    Args:
        decoder: The depth decoder.
        hidden: [R, D], the hidden state of the backbone, that of the unconditional rows last.
        first: int64 [B, 1], the first code.
        start: The position of the second code.
        window: How far a window may reach past the end.

    Attributes:
        vocab_size: V.
        device: The device of tokens and logits.
        start: The position of the second code.
        prompt_slots: Slots that the prefill reads.
        inputs: What a frame begins with, by row: the hidden state and the first code.
    """

    ROWS = ("inputs", "_cache")

    prompt_slots = 2

    def __init__(self, decoder: DepthDecoder, hidden: Tensor, first: Tensor, start: int, window: int) -> None:
        self.vocab_size = decoder.vocab_size
        self.device = hidden.device
        self.start = start
        self.inputs: tuple[Tensor, ...] = (hidden, first)
        self._decoder, self._codebooks, self._window = decoder, decoder.codebooks, window
        self._factor = len(hidden) // len(first)
        self._cache = SlotCache(self._codebooks + 1 + window)

    def prefill(self) -> Logits:
        slots = torch.arange(2, device=self.device).expand(len(self.inputs[0]), 2)
        logits = self.read(torch.zeros_like(slots), slots, 2)[0]
        return split_cfg(logits[:, 1:], self._factor == 2)

    def whole(self, frame: Tensor) -> Logits:
        """The logits [B, K - 1, V] of all codes of a frame int64 [B, K] but the first, in one call."""
        return split_cfg(self.every_code(frame), self._factor == 2)

    def every_code(self, frame: Tensor) -> Tensor:
        """The logits [R, K - 1, V] of all codes of a frame int64 [B, K] but the first, each from its own head."""
        count, hidden = self._codebooks, self.inputs[0][:, None]
        tokens = frame.repeat(self._factor, 1)
        codes = torch.cat([self._decoder.embed(tokens[:, book, None], book) for book in range(count - 1)], dim=1)
        slots = torch.arange(count, device=self.device).expand(len(hidden), count)
        self._cache.at(0, count)
        mask = hidden.new_full((1, 1, count, count), torch.finfo(hidden.dtype).min).triu(1)
        x = self._begun(codes, 0)
        features = self._decoder.run(x, mask.expand(len(x), -1, -1, -1), slots, self._cache)
        return torch.cat([self._decoder.head(features[:, n + 1, None], n) for n in range(count - 1)], dim=1)

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        host = at[:, None] + (2 - self.start) + np.arange(tokens.shape[1])
        slots = on_device(host, self.device)
        tokens, slots = (each.repeat(self._factor, 1) for each in (tokens, slots))
        return split_cfg(self.read(tokens, slots, int(host.max()) + 1)[0], self._factor == 2)

    def read(
        self, tokens: Tensor, slots: Tensor, end: int, early_exit: EarlyExit | None = None
    ) -> tuple[Tensor, Tensor]:
        """What is in slots 0 and 1 is in `inputs`."""
        first = self.inputs[1].repeat(self._factor, 1)
        # A draft window may begin before `start`, with tokens of the previous frame; slot 1 keeps the first code.
        slots = slots.clamp(min=0)
        tokens = torch.where(slots <= 1, first, tokens)
        embeds = self._decoder.embed(tokens, (slots - 1).clamp(0, self._codebooks - 1))
        embeds = self._with_hidden(embeds, slots)
        self._cache.at_slots(slots, end)
        mask = additive_mask(torch.arange(end, device=self.device) <= slots[..., None], embeds.dtype)
        features = self._decoder.run(embeds, mask, slots, self._cache)
        return self._decoder.head(features, (slots - 1).clamp(0, self._codebooks - 2)), features

    def code(self, number: int, before: Tensor | None) -> Tensor:
        """The logits [R, 1, V] of one code: see `mmspec.audio.depth.captured_depth.CapturableDepth.code`."""
        slot, of_first = number + 1, before is None
        tokens = self.inputs[1] if before is None else before
        first = 0 if of_first else slot
        embeds = self._begun(self._decoder.embed(tokens.repeat(self._factor, 1), number), first)
        width = embeds.shape[1]
        slots = torch.arange(first, slot + 1, device=self.device).expand(len(embeds), width)
        self._cache.at(first, slot + 1)
        mask = embeds.new_zeros(1, 1, width, slot + 1)
        if of_first:
            mask[..., 0, 1].fill_(torch.finfo(mask.dtype).min)  # the hidden state does not see the first code
        features = self._decoder.run(embeds, mask.expand(len(embeds), -1, -1, -1), slots, self._cache)
        return self._decoder.head(features[:, -1:], number)

    def _with_hidden(self, embeds: Tensor, slots: Tensor) -> Tensor:
        """What the decoder reads in slots int64 [R, W]: embeddings [R, W, D] of codes, the hidden state in slot 0."""
        return torch.where((slots == 0)[..., None], self.inputs[0][:, None], embeds)

    def _begun(self, embeds: Tensor, first: int) -> Tensor:
        """The same in the slots from `first` on; of slot 0 there is no embedding."""
        return embeds if first else torch.cat([self.inputs[0][:, None], embeds], dim=1)

    @property
    def rows(self) -> int:
        """B."""
        return len(self.inputs[1])

    @property
    def cfg_factor(self) -> int:
        """Cache rows per row of the batch: 2 with guidance, else 1."""
        return self._factor

    @property
    def capacity(self) -> int:
        """Slots of the KV cache per row."""
        return self._cache.capacity

    def with_rows(self, rows: int) -> Self:
        """A target of as many rows, whose inputs are zeros."""
        hidden, first = self.inputs[:2]
        return type(self)(
            self._decoder,
            hidden.new_zeros(rows * self._factor, hidden.shape[1]),
            first.new_zeros(rows, 1),
            self.start,
            self._window,
        )

    def shapes(self) -> tuple[Any, ...]:
        return type(self._decoder), self.capacity, self._codebooks, *((each.shape, each.dtype) for each in self.inputs)

    def tensors(self) -> list[Tensor]:
        return [*self.inputs, *self._cache.tensors()]

    def take_over(self, tensors: list[Tensor]) -> None:
        """The inputs are those of an earlier frame until others come."""
        count = len(self.inputs)
        self.inputs = tuple(tensors[:count])
        with torch.inference_mode():  # the tensors were made in it
            self._cache.take_over(tensors[count:])


def by_index(
    x: Tensor, index: Tensor | int, count: int, width: int, dtype: torch.dtype, apply: Callable[[int, Tensor], Tensor]
) -> Tensor:
    """Applies one of several functions at each place.

    One number for all places takes that function alone. Where the host knows the numbers, each function reads its own
    places; where only a device does, each reads all: a window has about as many places as there are functions, and
    their weights take longer to read than the places.

    Args:
        x: [B, W, ...].
        index: int64 [B, W], the function's number at each place, on a CPU or on the device of `x`; or one number.
        count: The number of functions; each must accept every entry of `x`.
        width: Size of what a function returns per place.
        apply: Takes a number and entries [n, ...] of `x`, and returns [n, width].

    Returns:
        [B, W, width].
    """
    if isinstance(index, int):
        return apply(index, x.flatten(0, 1)).unflatten(0, x.shape[:2])
    if index.device.type != "cpu":
        flat = x.flatten(0, 1)
        every = torch.stack([apply(number, flat) for number in range(count)], dim=1)
        return every[torch.arange(len(flat), device=x.device), index.flatten()].unflatten(0, index.shape)
    out = torch.empty(*index.shape, width, dtype=dtype, device=x.device)
    numbers = index.numpy()
    for number in np.unique(numbers):
        places = torch.from_numpy(numbers == number).to(x.device)
        out[places] = apply(int(number), x[places])
    return out
