"""The codes of one frame of Kyutai TTS as a target; each step along the depth has weights of its own."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mmspec.audio.depth.depth_target import by_index
from mmspec.audio.models.kyutai_tts.model import Attention, DepthLayer, Gating, KyutaiTTS, attend
from mmspec.decoding.attention_masks import additive_mask
from mmspec.hf.slot_cache import SlotCache
from mmspec.sampling.logits import Logits


class KyutaiDepth:
    """A `mmspec.decoding.target.Target` of the codes of a frame.

    Slot k of its KV cache reads the token before code k: the text id, or code k - 1; the hidden state of the frame is
    added to each. A code that is absent, since audio has not begun, is the id after the codes, which alone is possible
    there.

    Args:
        model: The model.
        hidden: [B, D], the hidden state of the frame.
        text: int64 [B], the text id.
        absent: Host bool [B, K], which codes are absent.
        start: The position of the first code.
        window: How far a window may reach past the end.
    """

    def __init__(
        self, model: KyutaiTTS, hidden: Tensor, text: Tensor, absent: NDArray[np.bool_], start: int, window: int
    ) -> None:
        config = model.config
        self.vocab_size, self.device = config.card + 1, hidden.device
        self._model, self._hidden, self._text, self._absent, self._start = model, hidden, text, absent, start
        self._codebooks = absent.shape[1]
        self._steps = np.array(config.schedule)
        self._cache = SlotCache(self._codebooks + 1 + window)

    def prefill(self) -> Logits:
        return self._read(self._text[:, None], np.zeros((len(self._text), 1), dtype=np.int64))

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        slots = at[:, None] - self._start + 1 + np.arange(tokens.shape[1])
        return self._read(tokens, slots)

    def select_rows(self, row_ids: list[int]) -> None:
        self._hidden, self._text, self._absent = self._hidden[row_ids], self._text[row_ids], self._absent[row_ids]
        self._cache.select_rows(torch.tensor(row_ids, device=self.device))

    def _read(self, tokens: Tensor, slots: NDArray[np.int64]) -> Logits:
        """The logits [B, W, V] of the codes of slots, host int64 [B, W], given the tokens before them."""
        # A window may begin with tokens of the previous frame, in slots below 0, and reach past the last code.
        codes = slots.clip(0, self._codebooks - 1)
        absent = torch.from_numpy(np.take_along_axis(self._absent, codes, axis=1)).to(self.device)
        z = torch.full((*tokens.shape, self.vocab_size), -torch.inf, device=self.device)
        if not self._absent.all():
            slots = slots.clip(0)
            z[..., :-1] = self._logits(tokens, slots, codes).float().masked_fill(absent[..., None], -torch.inf)
        z[..., -1] = torch.where(absent, 0.0, -torch.inf)
        return Logits(z, None)

    def _logits(self, tokens: Tensor, slots: NDArray[np.int64], codes: NDArray[np.int64]) -> Tensor:
        """The logits [B, W, card] of codes number `codes`, host int64 [B, W]."""
        model, width = self._model, self._model.config.depth.dim
        steps, dtype, device = self._steps[codes], model.dtype, self.device
        tokens = torch.where(tokens == self.vocab_size - 1, -1, tokens)
        tokens = torch.where(torch.from_numpy(codes == 0).to(device), self._text[:, None], tokens)

        def embed(code: int, own: Tensor) -> Tensor:
            part: Tensor = model.depformer_emb[code - 1](own) if code else model.depformer_text_emb(own)
            return part

        wide = self._hidden[:, None].expand(-1, tokens.shape[1], -1)
        x = by_index(tokens, codes, width, dtype, embed)
        x = x + by_index(wide, steps, width, dtype, lambda step, own: model.depformer_in[step](own))
        positions, end = torch.from_numpy(slots).to(device), int(slots.max()) + 1
        self._cache.at_slots(positions, end)
        mask = additive_mask(torch.arange(end, device=device) <= positions[..., None], dtype)
        for number, layer in enumerate(model.depformer.layers):
            assert isinstance(layer, DepthLayer)
            x = self._layer(layer, number, x, steps, mask)
        return by_index(x, codes, model.config.card, dtype, lambda code, own: model.linears[code](own))

    def _layer(self, layer: DepthLayer, number: int, x: Tensor, steps: NDArray[np.int64], mask: Tensor) -> Tensor:
        sizes, attention = self._model.config.depth, layer.self_attn
        assert isinstance(attention, Attention)

        def at_steps(modules: nn.ModuleList, x: Tensor, width: int) -> Tensor:
            return by_index(x, steps, width, x.dtype, lambda step, own: modules[step](own))

        qkv = at_steps(attention.in_projs, layer.norm1(x), 3 * sizes.dim)
        attended = attend(qkv, sizes.heads, mask, self._cache, number)
        x = x + at_steps(attention.out_projs, attended, sizes.dim)
        assert isinstance(layer.gating[0], Gating)
        return x + at_steps(layer.gating, layer.norm2(x), sizes.dim)
