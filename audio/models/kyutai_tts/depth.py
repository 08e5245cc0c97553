"""The codes of one frame of Kyutai TTS as a target; each step along the depth has weights of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from mmspec.audio.depth.depth_target import by_index
from mmspec.audio.models.kyutai_tts.model import Attention, DepthLayer, Embedding, KyutaiTTS, attend
from mmspec.decoding.attention_masks import additive_mask
from mmspec.decoding.target import EarlyExit
from mmspec.hf.slot_cache import SlotCache
from mmspec.sampling.logits import Logits

# Applies those modules of a list that belong to the steps of places [R, W, ...], which it makes [R, W, width].
AtSteps = Callable[[nn.ModuleList, Tensor, int], Tensor]


def reader_of(model: KyutaiTTS) -> nn.Module:
    """The parts of a model that a window along the depth reads, besides embeddings."""
    parts = nn.ModuleList([model.depformer, model.depformer_in, model.linears])
    for table in (*model.depformer_emb, model.depformer_text_emb):
        assert isinstance(table, Embedding)
        parts.extend(table.projections)
    return parts


class KyutaiDepth:
    """The codes of a frame; a `mmspec.audio.depth.captured_depth.CapturableDepth` where none of them is given.

    Slot k of its KV cache reads the token before code k: the text id, or code k - 1; the hidden state of the frame is
    added to each. A code that is given alone is possible in its place: one of a voice, or the id after the codes where
    audio has not begun. With guidance the hidden states are those of conditional and unconditional rows, which read the
    same tokens; R is then 2 * B, else B.

    Args:
        hidden: [R, D], the hidden state of the frame, that of the unconditional rows last.
        text: int64 [B], the text id.
        given: Host int64 [B, K], the codes that are given; -1 for those that are generated.
        start: The position of the first code.
        window: How far a window may reach past the end.

    Attributes:
        prompt_slots: Slots that the prefill reads.
        inputs: What a frame begins with, by row: the hidden state and the text id.
    """

    ROWS = ("inputs", "_given", "_cache")

    prompt_slots = 1

    def __init__(
        self, model: KyutaiTTS, hidden: Tensor, text: Tensor, given: NDArray[np.int64], start: int, window: int
    ) -> None:
        config = model.config
        self.vocab_size, self.device = config.card + 1, hidden.device
        self.start = start
        self.inputs: tuple[Tensor, ...] = (hidden, text)
        self._model, self._given = model, given
        self._codebooks, self._factor = given.shape[1], len(hidden) // len(text)
        self._steps = np.array(config.schedule)
        self._cache = SlotCache(self._codebooks + 1 + window)

    def prefill(self) -> Logits:
        return self._read(self.inputs[1][:, None], np.zeros((len(self.inputs[1]), 1), dtype=np.int64))

    def whole(self, frame: Tensor) -> Logits:
        """The logits [B, K, V] of all codes of a frame int64 [B, K], in one call."""
        slots = np.tile(np.arange(self._codebooks), (len(frame), 1))
        return self._read(torch.cat([self.inputs[1][:, None], frame[:, :-1]], dim=1), slots)

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        slots = at[:, None] - self.start + 1 + np.arange(tokens.shape[1])
        return self._read(tokens, slots)

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
        tokens = tokens.repeat(self._factor, 1)
        steps, codes, slots = (np.tile(each, (self._factor, 1)) for each in (self._steps[codes], codes, slots))
        # Numbers of the host: each weight is read where it is used.
        of_steps, of_codes = torch.from_numpy(steps), torch.from_numpy(codes)

        def at_steps(modules: nn.ModuleList, x: Tensor, width: int) -> Tensor:
            return by_index(x, of_steps, len(modules), width, x.dtype, lambda step, own: modules[step](own))

        positions = torch.from_numpy(slots).to(self.device)
        return self._run(tokens, of_codes, positions, int(slots.max()) + 1, at_steps)

    def read(
        self, tokens: Tensor, slots: Tensor, end: int, early_exit: EarlyExit | None = None
    ) -> tuple[Tensor, Tensor]:
        """No code is given. All weights are read."""
        slots = slots.clamp(min=0)
        codes, numbers = slots.clamp(max=self._codebooks - 1), self._steps.tolist()

        def at_steps(modules: nn.ModuleList, x: Tensor, width: int) -> Tensor:
            return by_index(x, codes, self._codebooks, width, x.dtype, lambda code, own: modules[numbers[code]](own))

        logits = self._without_absent(self._run(tokens, codes, slots, end, at_steps))
        return logits, logits

    def code(self, number: int, before: Tensor | None) -> Tensor:
        """The logits [R, 1, V] of one code: see `mmspec.audio.depth.captured_depth.CapturableDepth.code`."""
        model, step = self._model, int(self._steps[number])
        hidden, text = self.inputs
        table = model.depformer_emb[number - 1] if number else model.depformer_text_emb
        tokens = text[:, None] if before is None else before
        x = table(tokens.repeat(self._factor, 1)) + model.depformer_in[step](hidden[:, None])
        self._cache.at(number, number + 1)

        def at_step(modules: nn.ModuleList, x: Tensor, width: int) -> Tensor:
            out: Tensor = modules[step](x)
            return out

        return self._without_absent(model.linears[number](self._layers(x, None, at_step)))

    def _without_absent(self, logits: Tensor) -> Tensor:
        """Logits [R, W, card] with the absent id, which the conditional ones forbid, [R, W, V]."""
        wide = F.pad(logits.float(), (0, 1))
        wide[: len(self.inputs[1]), :, -1] = -torch.inf
        return wide

    def _run(self, tokens: Tensor, codes: Tensor, slots: Tensor, end: int, at_steps: AtSteps) -> Tensor:
        """Logits [R, W, card] of codes, after tokens int64 [R, W] in `slots`; all arguments but the last are [R, W]."""
        # Where the numbers of `codes` are on the host, only the weights that are used are read.
        model, width, (hidden, text) = self._model, self._model.config.depth.dim, self.inputs
        first = (codes == 0).to(self.device)
        tokens = torch.where(first, text.repeat(self._factor)[:, None], tokens.where(tokens < self.vocab_size - 1, -1))

        def embed(code: int, own: Tensor) -> Tensor:
            part: Tensor = model.depformer_emb[code - 1](own) if code else model.depformer_text_emb(own)
            return part

        x = by_index(tokens, codes, self._codebooks, width, model.dtype, embed)
        x = x + at_steps(model.depformer_in, hidden[:, None].expand(-1, tokens.shape[1], -1), width)
        self._cache.at_slots(slots, end)
        mask = additive_mask(torch.arange(end, device=self.device) <= slots[..., None], model.dtype)
        x = self._layers(x, mask, at_steps)
        count, card = self._codebooks, model.config.card
        return by_index(x, codes, count, card, model.dtype, lambda code, own: model.linears[code](own))

    def _layers(self, x: Tensor, mask: Tensor | None, at_steps: AtSteps) -> Tensor:
        sizes = self._model.config.depth
        for number, layer in enumerate(self._model.depformer.layers):
            assert isinstance(layer, DepthLayer) and isinstance(layer.self_attn, Attention)
            qkv = at_steps(layer.self_attn.in_projs, layer.norm1(x), 3 * sizes.dim)
            attended = attend(qkv, sizes.heads, mask, self._cache, number)
            x = x + at_steps(layer.self_attn.out_projs, attended, sizes.dim)
            x = x + at_steps(layer.gating, layer.norm2(x), sizes.dim)
        return x

    @property
    def rows(self) -> int:
        """B."""
        return len(self.inputs[1])

    @property
    def cfg_factor(self) -> int:
        """2 with guidance, else 1."""
        return self._factor

    @property
    def capacity(self) -> int:
        """Slots per row."""
        return self._cache.capacity

    def with_rows(self, rows: int) -> KyutaiDepth:
        """A target of as many rows, whose inputs are zeros, and whose codes are generated."""
        hidden, text = self.inputs
        given = np.full((rows, self._codebooks), -1)
        zeros = hidden.new_zeros(rows * self._factor, *hidden.shape[1:]), text.new_zeros(rows)
        return KyutaiDepth(self._model, *zeros, given, self.start, self.capacity - self._codebooks - 1)

    def shapes(self) -> tuple[Any, ...]:
        return self.capacity, self._codebooks, *((each.shape, each.dtype) for each in self.inputs)

    def tensors(self) -> list[Tensor]:
        return [*self.inputs, *self._cache.tensors()]

    def take_over(self, tensors: list[Tensor]) -> None:
        """The inputs are those of an earlier frame until others come."""
        self.inputs = tensors[0], tensors[1]
        with torch.inference_mode():  # the tensors were made in it
            self._cache.take_over(tensors[2:])
