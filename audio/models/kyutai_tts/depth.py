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
from mmspec.sampling.logits import Logits, cfg_rows


class KyutaiDepth:
    """A `mmspec.decoding.target.Target` of the codes of a frame.

    Slot k of its KV cache reads the token before code k: the text id, or code k - 1; the hidden state of the frame is
    added to each. A code that is given alone is possible in its place: one of a voice, or the id after the codes where
    audio has not begun. With guidance the hidden states are those of conditional and unconditional rows, which read the
    same tokens; R is then 2 * B, else B.

    Args:
        model: The model.
        hidden: [R, D], the hidden state of the frame, that of the unconditional rows last.
        text: int64 [B], the text id.
        given: Host int64 [B, K], the codes that are given; -1 for those that are generated.
        start: The position of the first code.
        window: How far a window may reach past the end.
    """

    def __init__(
        self, model: KyutaiTTS, hidden: Tensor, text: Tensor, given: NDArray[np.int64], start: int, window: int
    ) -> None:
        config = model.config
        self.vocab_size, self.device = config.card + 1, hidden.device
        self._model, self._hidden, self._text, self._given, self._start = model, hidden, text, given, start
        self._codebooks, self._factor = given.shape[1], len(hidden) // len(text)
        self._steps = np.array(config.schedule)
        self._cache = SlotCache(self._codebooks + 1 + window)

    def prefill(self) -> Logits:
        return self._read(self._text[:, None], np.zeros((len(self._text), 1), dtype=np.int64))

    def whole(self, frame: Tensor) -> Logits:
        """The logits [B, K, V] of all codes of a frame int64 [B, K], in one call."""
        slots = np.tile(np.arange(self._codebooks), (len(frame), 1))
        return self._read(torch.cat([self._text[:, None], frame[:, :-1]], dim=1), slots)

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        slots = at[:, None] - self._start + 1 + np.arange(tokens.shape[1])
        return self._read(tokens, slots)

    def select_rows(self, row_ids: list[int]) -> None:
        index = cfg_rows(row_ids, len(self._text), self._factor == 2, self.device)
        self._hidden, self._text, self._given = self._hidden[index], self._text[row_ids], self._given[row_ids]
        self._cache.select_rows(index)

    def _read(self, tokens: Tensor, slots: NDArray[np.int64]) -> Logits:
        """The logits [B, W, V] of the codes of slots, host int64 [B, W], given the tokens before them."""
        # A window may begin with tokens of the previous frame, in slots below 0, and reach past the last code.
        codes = slots.clip(0, self._codebooks - 1)
        given = torch.from_numpy(np.take_along_axis(self._given, codes, axis=1)).to(self.device)[..., None]
        z = torch.zeros(self._factor, *tokens.shape, self.vocab_size, device=self.device)
        if (self._given < 0).any():
            made = self._logits(tokens, slots.clip(0), codes).float()
            z[..., :-1] = made.unflatten(0, (self._factor, -1))
        ids = torch.arange(self.vocab_size, device=self.device)
        # What the conditional logits forbid is forbidden, whatever the unconditional ones are.
        cond = torch.where(given < 0, z[0], 0.0)
        cond.masked_fill_(torch.where(given < 0, ids == self.vocab_size - 1, ids != given), -torch.inf)
        return Logits(cond, None if self._factor == 1 else torch.where(given < 0, z[1], 0.0))

    def _logits(self, tokens: Tensor, slots: NDArray[np.int64], codes: NDArray[np.int64]) -> Tensor:
        """The logits [R, W, card] of codes number `codes`, host int64 [B, W]."""
        model, width = self._model, self._model.config.depth.dim
        steps, dtype, device = self._steps[codes], model.dtype, self.device
        tokens = torch.where(tokens == self.vocab_size - 1, -1, tokens)
        tokens = torch.where(torch.from_numpy(codes == 0).to(device), self._text[:, None], tokens)
        tokens = tokens.repeat(self._factor, 1)
        steps, codes, slots = (np.tile(each, (self._factor, 1)) for each in (steps, codes, slots))

        def embed(code: int, own: Tensor) -> Tensor:
            part: Tensor = model.depformer_emb[code - 1](own) if code else model.depformer_text_emb(own)
            return part

        # Numbers of the host: each weight is read where it is used.
        of_steps, of_codes, count = torch.from_numpy(steps), torch.from_numpy(codes), len(model.depformer_in)
        wide = self._hidden[:, None].expand(-1, tokens.shape[1], -1)
        x = by_index(tokens, of_codes, self._codebooks, width, dtype, embed)
        x = x + by_index(wide, of_steps, count, width, dtype, lambda step, own: model.depformer_in[step](own))
        positions, end = torch.from_numpy(slots).to(device), int(slots.max()) + 1
        self._cache.at_slots(positions, end)
        mask = additive_mask(torch.arange(end, device=device) <= positions[..., None], dtype)
        for number, layer in enumerate(model.depformer.layers):
            assert isinstance(layer, DepthLayer)
            x = self._layer(layer, number, x, of_steps, mask)
        last = self._codebooks
        return by_index(x, of_codes, last, model.config.card, dtype, lambda code, own: model.linears[code](own))

    def _layer(self, layer: DepthLayer, number: int, x: Tensor, steps: Tensor, mask: Tensor) -> Tensor:
        sizes, attention = self._model.config.depth, layer.self_attn
        assert isinstance(attention, Attention)

        def at_steps(modules: nn.ModuleList, x: Tensor, width: int) -> Tensor:
            return by_index(x, steps, len(modules), width, x.dtype, lambda step, own: modules[step](own))

        qkv = at_steps(attention.in_projs, layer.norm1(x), 3 * sizes.dim)
        attended = attend(qkv, sizes.heads, mask, self._cache, number)
        x = x + at_steps(attention.out_projs, attended, sizes.dim)
        assert isinstance(layer.gating[0], Gating)
        return x + at_steps(layer.gating, layer.norm2(x), sizes.dim)
