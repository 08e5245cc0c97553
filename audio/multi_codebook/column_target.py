"""A decoder of transformers that reads and predicts columns, as a target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from mmspec.audio.multi_codebook.cross_attention import CrossAttention
from mmspec.hf.causal_target import Backbone, CausalTarget, Prompt


class ColumnTarget(CausalTarget):
    """A decoder whose tokens are columns of K codes, with the text that it attends to.

    Args:
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

    ROWS = (*CausalTarget.ROWS, "_cross_attention")

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
        backbone = Backbone(decoder, embed, heads, vocab_size, prompt.embeds.device, (codebooks,))
        super().__init__(backbone, prompt, (uncond or prompt) if guided else None, length, slack)
        self._cross_attention = cross_attention

    def round_capacity(self, multiple: int) -> None:
        """Rounds the slots per row up to a multiple, those of the text too; called before the prefill."""
        super().round_capacity(multiple)
        if self._cross_attention is not None:
            self._cross_attention.round_length(multiple)

    def shapes(self) -> tuple[Any, ...]:
        text = self._cross_attention
        return *super().shapes(), None if text is None else (text.states.shape, text.states.dtype)

    def tensors(self) -> list[Tensor]:
        text = [] if self._cross_attention is None else self._cross_attention.tensors()
        return [*text, *super().tensors()]

    def take_over(self, tensors: list[Tensor]) -> None:
        of_text = 0
        if self._cross_attention is not None:
            of_text = self._cross_attention.take_over(tensors, self.layers)
        super().take_over(tensors[of_text:])
