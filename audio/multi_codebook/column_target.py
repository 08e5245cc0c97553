"""A decoder of transformers that reads and predicts columns, as a target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmspec.audio.multi_codebook.cross_attention import CrossAttention
from mmspec.decoding.target import EarlyExit, cache_bytes
from mmspec.hf.causal_target import Backbone, CausalTarget, Prompt
from mmspec.sampling.logits import Logits, cfg_rows


class ColumnTarget:
    """A decoder whose tokens are columns of K codes; see `mmspec.hf.causal_target.CausalTarget`.

    Args:
        decoder: See `mmspec.hf.causal_target.Backbone`.
        embed: Maps columns int64 [R, W, K] to embeddings [R, W, D].
        heads: Maps hidden states [R, W, D] to logits [R, W, K, V].
        codebooks: K.
        vocab_size: V.
        prompt: The prompts of all rows.
        guided: Whether to read unconditional rows too.
        length: Columns to generate.
        slack: How many columns a window may reach past the end.
        cross_attention: The encoded text that the decoder attends to, of the conditional rows and, if guided, of the
            unconditional rows after them; None for decoders without cross-attention.
        uncond: The prompts of the unconditional rows; None is `prompt`.
    """

    def __init__(
        self,
        decoder: Callable[..., Any],
        embed: Callable[[Tensor], Tensor],
        heads: Callable[[Tensor], Tensor],
        codebooks: int,
        vocab_size: int,
        prompt: Prompt,
        guided: bool,
        length: int,
        slack: int,
        cross_attention: CrossAttention | None = None,
        uncond: Prompt | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.device = prompt.embeds.device
        self._cross_attention = cross_attention
        self._guided = guided
        self._rows = len(prompt.mask)
        # `CausalTarget` reads tokens of one id: a column passes through it as K ids, up to the embedding.
        flat = Backbone(decoder, lambda ids: embed(ids.unflatten(1, (-1, codebooks))), heads, vocab_size, self.device)
        self._target = CausalTarget(flat, prompt, (uncond or prompt) if guided else None, length, slack)
        self.layers = self._target.layers

    def prefill(self) -> Logits:
        return self._target.prefill()

    def forward(self, tokens: Tensor, at: NDArray[np.int64], early_exit: EarlyExit | None = None) -> Logits:
        return self._target.forward(tokens.flatten(1), at, early_exit)

    def select_rows(self, row_ids: list[int]) -> None:
        if self._cross_attention is not None:
            self._cross_attention.select_rows(cfg_rows(row_ids, self._rows, self._guided, self.device))
        self._rows = len(row_ids)
        self._target.select_rows(row_ids)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV cache."""
        return cache_bytes(self._target)

    def can_join(self, other: object) -> bool:
        """Whether the rows of `other` can join: a target of the same model, guided or not as this one."""
        return isinstance(other, ColumnTarget) and self._target.can_join(other._target)

    def join(self, other: ColumnTarget, row_ids: list[int]) -> None:
        if self._cross_attention is not None and other._cross_attention is not None:
            self._cross_attention.join(other._cross_attention, row_ids, 1 + self._guided)
        self._rows = max(self._rows, *(row + 1 for row in row_ids))
        self._target.join(other._target, row_ids)
