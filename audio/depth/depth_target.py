"""A depth decoder as a target: the codes of one frame after the first, each from its codebook's embedding and head.

CSM, Qwen3-TTS and the talker of Qwen3-Omni have decoders of this kind. Those whose weights depend on the position,
like Moshi's, have targets of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.attention_masks import additive_mask
from mmspec.hf.slot_cache import SlotCache
from mmspec.sampling.logits import Logits, cfg_rows, split_cfg


class DepthDecoder(Protocol):
    """A transformer over the codes of a frame.

    It reads the backbone's hidden state, and then code after code.

    Attributes:
        vocab_size: V, of the codes after the first.
        codebooks: K, codes of a frame.
    """

    vocab_size: int
    codebooks: int

    def embed(self, tokens: Tensor, books: NDArray[np.int64]) -> Tensor:
        """Codes int64 [B, W] of codebooks `books`, host int64 [B, W], 0 to K - 1, to embeddings [B, W, D].

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

    def head(self, hidden: Tensor, heads: NDArray[np.int64]) -> Tensor:
        """Hidden states [B, W, H] to logits [B, W, V], by heads number `heads`, host int64 [B, W], 0 to K - 2."""
        ...


class DepthTarget:
    """The codes of one frame after the first; a `mmspec.decoding.target.Target`.

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
    """

    def __init__(self, decoder: DepthDecoder, hidden: Tensor, first: Tensor, start: int, window: int) -> None:
        self.vocab_size = decoder.vocab_size
        self.device = hidden.device
        self._decoder, self._codebooks = decoder, decoder.codebooks
        self._hidden, self._first, self._start = hidden, first, start
        self._factor = len(hidden) // len(first)
        self._cache = SlotCache(self._codebooks + 1 + window)

    def prefill(self) -> Logits:
        first = self._embed(self._first.repeat(self._factor, 1), np.ones((1, 1), dtype=np.int64))
        embeds = torch.stack([self._hidden, first[:, 0]], dim=1)
        return self._read(embeds, np.tile([0, 1], (len(embeds), 1)), last=1)

    def whole(self, frame: Tensor) -> Logits:
        """The logits [B, K - 1, V] of all codes of a frame int64 [B, K] but the first, in one call."""
        frame = frame.repeat(self._factor, 1)
        slots = np.tile(np.arange(self._codebooks), (len(frame), 1))
        embeds = torch.cat([self._hidden[:, None], self._embed(frame[:, :-1], slots[:, 1:])], dim=1)
        return self._read(embeds, slots, last=self._codebooks - 1)

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        slots = at[:, None] - self._start + 2 + np.arange(tokens.shape[1])
        # A draft window may begin before `start`, with tokens of the previous frame; slot 1 keeps the first code.
        given = torch.from_numpy(slots <= 1).to(self.device)
        tokens, slots = (
            torch.where(given, self._first, tokens).repeat(self._factor, 1),
            np.tile(slots, (self._factor, 1)),
        )
        return self._read(self._embed(tokens, slots), slots)

    def select_rows(self, row_ids: list[int]) -> None:
        index = cfg_rows(row_ids, len(self._first), self._factor == 2, self.device)
        self._hidden, self._first = self._hidden[index], self._first[row_ids]
        self._cache.select_rows(index)

    def _embed(self, tokens: Tensor, slots: NDArray[np.int64]) -> Tensor:
        """Embeddings [B, W, D] of tokens in slots, host int64 [B or 1, W]."""
        books = np.array(np.broadcast_to((slots - 1).clip(0, self._codebooks - 1), tuple(tokens.shape)))
        return self._decoder.embed(tokens, books)

    def _read(self, embeds: Tensor, slots: NDArray[np.int64], last: int = 0) -> Logits:
        """The logits [B, last, V] after the last tokens of a window.

        Args:
            embeds: [R, W, D].
            slots: Host int64 [R, W], the slots of the tokens, which are their positions too.
            last: How many tokens, from the end; 0 is all.
        """
        positions, end = torch.from_numpy(slots).to(self.device), int(slots.max()) + 1
        self._cache.at_slots(positions, end)
        mask = additive_mask(torch.arange(end, device=self.device) <= positions[..., None], embeds.dtype)
        hidden = self._decoder.run(embeds, mask, positions, self._cache)[:, -last:]
        logits = self._decoder.head(hidden, (slots[:, -last:] - 1).clip(0, self._codebooks - 2))
        return split_cfg(logits, self._factor == 2)


def by_index(
    x: Tensor, index: NDArray[np.int64], width: int, dtype: torch.dtype, apply: Callable[[int, Tensor], Tensor]
) -> Tensor:
    """Applies one of several functions at each place.

    Args:
        x: [B, W, ...].
        index: Host int64 [B, W], the function's number at each place.
        width: Size of what a function returns per place.
        dtype: Its dtype.
        apply: Takes a number and the entries [n, ...] of `x` with it, and returns [n, width].

    Returns:
        [B, W, width].
    """
    out = torch.empty(*index.shape, width, dtype=dtype, device=x.device)
    for number in np.unique(index):
        places = torch.from_numpy(index == number).to(x.device)
        out[places] = apply(int(number), x[places])
    return out
