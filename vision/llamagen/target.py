"""LlamaGen wrapped as a target: one batch of prompts, its cache, and its guidance rows."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.attention_masks import additive_mask, tree_mask
from mmspec.decoding.kv_cache import KVCache, WindowSlots
from mmspec.decoding.target import EarlyExit
from mmspec.sampling.logits import Logits, cfg_rows, split_cfg
from mmspec.sampling.tree import Tree
from mmspec.vision.llamagen.gpt import LlamaGenGPT, Span, padding_bias


class LlamaGenTarget:
    """A LlamaGen with its conditions read.

    Args:
        gpt: The transformer.
        condition: Class ids int64 [B], or caption features [B, T, C].
        uncond: The same for the unconditional side, which turns guidance on; or None.
        condition_mask: [B, T], 0 where a caption slot is padding. It counts for the unconditional side as well, as in
            the published sampler.
        slack: How many slots a window may reach past the end.
    """

    def __init__(
        self,
        gpt: LlamaGenGPT,
        condition: Tensor,
        uncond: Tensor | None,
        condition_mask: Tensor | None,
        slack: int,
    ) -> None:
        c = gpt.config
        self.vocab_size: int = c.vocab_size
        self.device = gpt.device
        self.layers: int = c.n_layer
        self._gpt = gpt
        self._guided = uncond is not None
        self._condition = condition if uncond is None else torch.cat([condition, uncond])
        self._slots: int = c.cls_token_num
        self._length = length = c.grid_size**2
        capacity = self._slots + length + slack
        sides = 1 + self._guided
        self._rows = condition.shape[0]
        table = torch.empty(0, dtype=gpt.dtype, device=self.device)
        self._cache = KVCache(c.n_layer, sides * self._rows, c.n_head, capacity, c.dim // c.n_head, table)
        self._features: Tensor | None = None
        # Tables by slot; slots past the end repeat the last one, whose answers nobody reads.
        past = torch.arange(capacity, device=self.device).clamp(max=self._slots + length - 1)
        cos, sin = gpt.rope()
        self._cos, self._sin = cos[past], sin[past]
        predicted = (past - self._slots + 1).clamp(0, length - 1)
        nothing = torch.zeros(capacity, c.dim, dtype=gpt.dtype, device=self.device)
        self._place = gpt.add_position(nothing, predicted)
        self._place[: self._slots - 1] = 0
        self._causal = torch.full((capacity, capacity), -torch.inf, dtype=gpt.dtype, device=self.device).triu(1)
        self._padding: Tensor | None = None
        if condition_mask is not None and not bool(condition_mask.all()):
            self._padding = padding_bias(condition_mask, capacity, gpt.dtype).repeat(sides, 1, 1, 1)

    def prefill(self) -> Logits:
        t = self._slots
        h = self._gpt.cls_embedding(self._condition).to(self._gpt.dtype) + self._place[:t]
        return self._logits(h, self._span(0, t, len(h)), 1)

    def forward(self, tokens: Tensor, at: NDArray[np.int64], part: EarlyExit | None = None) -> Logits:
        width, sides = tokens.shape[1], self._sides_of(part)
        tokens = torch.cat([tokens] * sides)
        h = self._gpt.embed(tokens)
        if (at == at[0]).all():
            start = self._slots + int(at[0])
            span = self._span(start, start + width, len(tokens))
            h = h + self._place[start : start + width]
        else:
            slots = self._on(sides, self._slots + at[:, None] + np.arange(width))
            span = self._ragged_span(slots, self._slots + int(at.max()) + width)
            h = h + self._place[slots]
        return self._logits(h, span, width, part)

    def read(self, tokens: Tensor, slots: Tensor, end: int) -> tuple[Tensor, Tensor]:
        """As `mmspec.decoding.cuda_graphs.Capturable` has it."""
        h = self._gpt.embed(tokens) + self._place[slots]
        features = self._gpt.features(h, self._ragged_span(slots, end), self._cache, None)
        return self._gpt.output(features), features

    @property
    def sides(self) -> int:
        """2 with guidance, else 1."""
        return self._sides_of(None)

    @property
    def rows(self) -> int:
        """How many rows run."""
        return self._rows

    @property
    def capacity(self) -> int:
        """Slots per row."""
        return len(self._causal)

    def slot(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slots of positions."""
        return self._slots + at

    def tensors(self) -> list[Tensor]:
        """What `read` reads and writes besides the weights."""
        padding = [] if self._padding is None else [self._padding]
        return [self._cache.keys, self._cache.values, self._cos, self._sin, self._place, self._causal, *padding]

    def take_over(self, tensors: list[Tensor]) -> None:
        """Uses the `tensors` of an earlier target of the same shapes from now on, before anything has been read."""
        for own, other in zip(self.tensors(), tensors, strict=True):
            other.copy_(own)
        self._cache.keys, self._cache.values, self._cos, self._sin, self._place, self._causal, *padding = tensors
        self._padding = padding[0] if padding else None

    def forward_tree(
        self, tokens: Tensor, at: NDArray[np.int64], tree: Tree, first: int = 0, part: EarlyExit | None = None
    ) -> Logits:
        width, sides = tokens.shape[1], self._sides_of(part)
        last = first + width
        root = self._slots + at
        places = self._on(sides, root[:, None] + tree.depth[:, first:last])
        h = self._gpt.embed(tokens.repeat(sides, 1)) + self._place[places]
        end = int(root.max()) + last
        bias = self._tree_bias(self._on(sides, root), tree.sees[:, first:last, 1:last], end)
        window = WindowSlots(end - width, end)
        if (at != at[0]).any():
            window.slots = self._on(sides, root[:, None] + np.arange(first, last))
        span = Span(self._cos[places][:, None], self._sin[places][:, None], bias, window)
        return self._logits(h, span, width, part)

    def settle(self, at: NDArray[np.int64], path: NDArray[np.int64]) -> None:
        steps = np.arange(1, 1 + path.shape[1])
        if (path != steps).any():
            root, sides = self._slots + at[:, None], self._sides_of(None)
            self._cache.move(self._on(sides, root + path), self._on(sides, root + steps))

    def select_rows(self, row_ids: list[int]) -> None:
        index = cfg_rows(row_ids, self._rows, self._guided, self.device)
        self._rows = len(row_ids)
        self._cache.select_rows(index)
        if self._features is not None:
            self._features = self._features[index]
        if self._padding is not None:
            self._padding = self._padding[index]

    def features(self) -> Tensor:
        assert self._features is not None, "nothing has been read yet"
        return self._features

    def head(self, features: Tensor) -> Tensor:
        return self._gpt.output(features)

    def _logits(self, h: Tensor, span: Span, last: int, part: EarlyExit | None = None) -> Logits:
        """Those of the last slots of a window that is embedded in `h` [R, W, D]."""
        features = self._gpt.features(h, span, self._cache, None if part is None else part.layers)
        if part is None:
            self._features = features
        return split_cfg(self._gpt.output(features[:, -last:]), self._sides_of(part) == 2)

    def _sides_of(self, part: EarlyExit | None) -> int:
        """1, or 2 where a call, or a part of one, reads the unconditional side as well."""
        return 1 + (self._guided and (part is None or part.guided))

    def _on(self, sides: int, slots: NDArray[np.int64]) -> Tensor:
        """The same slots int64 [B, ...] on so many sides."""
        return torch.from_numpy(np.concatenate([slots] * sides)).to(self.device)

    def _span(self, start: int, end: int, batch_size: int) -> Span:
        """So many rows of a doubled batch, all at the same slots."""
        bias: Tensor | None = None
        if self._padding is not None:
            bias = self._causal[start:end, :end] + self._padding[:batch_size, :, start:end, :end]
        elif end - start > 1:
            bias = self._causal[start:end, :end]
        return Span(self._cos[start:end], self._sin[start:end], bias, WindowSlots(start, end))

    def _ragged_span(self, slots: Tensor, end: int) -> Span:
        """Each row at its own slots [B, W]."""
        bias = self._causal[slots, :end][:, None]
        if self._padding is not None:
            # Window slots are never condition slots, so the padding is the same for all of them.
            bias = bias + self._padding[: len(slots), :, -1:, :end]
        return Span(self._cos[slots][:, None], self._sin[slots][:, None], bias, WindowSlots(end=end, slots=slots))

    def _tree_bias(self, root: Tensor, sees: Tensor, end: int) -> Tensor:
        """What W entries may look at, [B, 1, W, end]: all before and at the root's slot, and what `sees` tells.

        `root` int64 [B]; `sees` bool [B or 1, W, n], of the n slots after the root.
        """
        bias = additive_mask(tree_mask(root, sees, end), self._causal.dtype, hidden=-torch.inf)
        return bias if self._padding is None else bias + self._padding[: len(root), :, -1:, :end]
