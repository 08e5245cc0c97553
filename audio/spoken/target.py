"""The spoken transformer wrapped as a target: it keeps track of the phone that each row is in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.audio.spoken.transformer import LONGEST, SpokenTransformer
from mmspec.decoding.attention_masks import additive_mask, tree_mask
from mmspec.decoding.kv_cache import KVCache, WindowSlots
from mmspec.decoding.target import EarlyExit
from mmspec.sampling.logits import Logits
from mmspec.sampling.tree import Tree

Index = NDArray[np.int64]


def follow(phone: Index, age: Index, ends: NDArray[np.bool_]) -> tuple[Index, Index]:
    """The phone of the next token and how many tokens of it went before, once each token of a window was said.

    Args:
        phone: int64 [B], the same of the first token itself.
        age: int64 [B], the same of the first token itself.
        ends: bool [B, W], which tokens end their phone.
    """
    index = np.arange(ends.shape[1])
    latest = np.maximum.accumulate(np.where(ends, index, -1), axis=1)
    return phone[:, None] + ends.cumsum(1), np.where(latest >= 0, index - latest, age[:, None] + 1 + index)


class SpokenTarget:
    """The transformer with its scripts read.

    Place i of the cache holds the input that predicts position i, which tells the phone of position i.

    Args:
        net: The transformer.
        features: int64 [J, columns] of each row's script.
        length: Positions per row.
        slack: How many a window may reach past them.
    """

    def __init__(self, net: SpokenTransformer, features: Sequence[Index], length: int, slack: int) -> None:
        self.vocab_size = net.vocab_size
        self.layers = len(net.blocks)
        self.codes = net.codes
        self.device = net.start.device
        self._net = net
        most = max(map(len, features))
        padded = np.stack([np.pad(f, ((0, most - len(f)), (0, 0))) for f in features])
        self._told = net.tell(torch.from_numpy(padded).to(self.device))  # [B, J, dim]
        self._last = np.array([len(f) - 1 for f in features])  # phone that a row ends with
        capacity = length + slack + 2
        head_dim, dtype = len(net.start) // net.heads, net.start.dtype
        self._cache = KVCache(self.layers, len(features), net.heads, capacity, head_dim, dtype, self.device)
        self._cos, self._sin = (t.to(net.start.dtype) for t in net.turns(capacity))
        self._causal = torch.full((capacity, capacity), -torch.inf, dtype=net.start.dtype, device=self.device).triu(1)
        # The phone of each position and its tokens before that position; kept up to date by every call.
        self._phone = np.zeros((len(features), capacity), dtype=np.int64)
        self._age = np.zeros((len(features), capacity), dtype=np.int64)
        self._entries: tuple[Index, Index] = (self._phone[:, :0], self._age[:, :0])  # the same after a tree's entries
        self._forbidden = _forbidden(net.codes).to(self.device, net.start.dtype)

    def where(self, at: Index) -> tuple[Index, Index]:
        """The phone of position `at` [B] and its tokens before that position, int64 [B] each."""
        rows = np.arange(len(at))
        return self._phone[rows, at], self._age[rows, at]

    def prefill(self) -> Logits:
        count = len(self._last)
        phone = age = np.zeros((count, 1), dtype=np.int64)
        first = self._net.start + self._net.age(torch.zeros(1, dtype=torch.int64, device=self.device))
        h = (first + self._told[:, 0])[:, None]
        return self._answer(h, self._turn(slice(0, 1)), None, WindowSlots(0, 1), phone, age)

    def forward(self, tokens: Tensor, at: Index, part: EarlyExit | None = None) -> Logits:
        width = tokens.shape[1]
        phone, age = follow(*self.where(at), tokens.cpu().numpy() >= self.codes)
        phone = np.minimum(phone, self._last[:, None])
        h = self._enter(tokens, phone, age)
        if (at == at[0]).all():
            span = slice(int(at[0]) + 1, int(at[0]) + 1 + width)
            self._phone[:, span], self._age[:, span] = phone, age
            bias = self._causal[span, : span.stop] if width > 1 else None
            return self._answer(h, self._turn(span), bias, WindowSlots(span.start, span.stop), phone, age, part)
        places = at[:, None] + np.arange(1, 1 + width)
        rows = np.arange(len(at))[:, None]
        self._phone[rows, places], self._age[rows, places] = phone, age
        index, end = torch.from_numpy(places).to(self.device), int(places.max()) + 1
        bias = self._causal[index, :end][:, None]
        return self._answer(h, self._turn(index), bias, WindowSlots(end=end, slots=index), phone, age, part)

    def forward_tree(
        self, tokens: Tensor, at: Index, tree: Tree, first: int = 0, part: EarlyExit | None = None
    ) -> Logits:
        last = first + tokens.shape[1]
        phone, age = self._follow_tree(tokens.cpu().numpy(), at, tree, first)
        root = at + 1
        end = int(root.max()) + last
        depths = torch.from_numpy(root[:, None] + tree.depth[:, first:last]).to(self.device)
        places = torch.from_numpy(root[:, None] + np.arange(first, last)).to(self.device)
        roots = torch.from_numpy(root).to(self.device)
        sees = tree.sees[:, first:last, 1:last]
        bias = additive_mask(tree_mask(roots, sees, end), self._causal.dtype, hidden=-torch.inf)
        h = self._enter(tokens, phone, age)
        return self._answer(h, self._turn(depths), bias, WindowSlots(end=end, slots=places), phone, age, part)

    def settle(self, at: Index, path: Index) -> None:
        steps = np.arange(1, 1 + path.shape[1])
        rows = np.arange(len(at))[:, None]
        phone, age = self._entries
        self._phone[rows, at[:, None] + 1 + steps] = phone[rows, path]
        self._age[rows, at[:, None] + 1 + steps] = age[rows, path]
        if (path != steps).any():
            root = at[:, None] + 1
            self._cache.move(*(torch.from_numpy(root + p).to(self.device) for p in (path, steps)))

    def select_rows(self, row_ids: list[int]) -> None:
        index = torch.tensor(row_ids, device=self.device)
        self._cache.select_rows(index)
        self._told = self._told[index]
        self._last, self._phone, self._age = self._last[row_ids], self._phone[row_ids], self._age[row_ids]
        self._entries = (self._entries[0][row_ids], self._entries[1][row_ids])

    def _follow_tree(self, tokens: Index, at: Index, tree: Tree, first: int) -> tuple[Index, Index]:
        """As `follow`, after each entry that is read."""
        rows, width = tokens.shape
        last = first + width
        every = np.arange(rows)
        phone, age = np.zeros((2, rows, last), dtype=np.int64)
        if first == 0:
            root_phone, root_age = follow(*self.where(at), tokens[:, :1] >= self.codes)
            phone[:, 0], age[:, 0] = np.minimum(root_phone[:, 0], self._last), root_age[:, 0]
            self._phone[every, at + 1], self._age[every, at + 1] = phone[:, 0], age[:, 0]
        else:
            known = min(self._entries[0].shape[1], first)
            phone[:, :known], age[:, :known] = self._entries[0][:, :known], self._entries[1][:, :known]
            phone[:, 0], age[:, 0] = self.where(at + 1)  # which `forward` may have read
        for entry in range(max(first, 1), last):
            parent = np.broadcast_to(tree.parents[:, entry - 1], rows)
            ended = tokens[:, entry - first] >= self.codes
            phone[:, entry] = np.minimum(phone[every, parent] + ended, self._last)
            age[:, entry] = np.where(ended, 0, age[every, parent] + 1)
        self._entries = phone, age
        return phone[:, first:], age[:, first:]

    def _enter(self, tokens: Tensor, phone: Index, age: Index) -> Tensor:
        rows = torch.arange(len(tokens), device=self.device)[:, None]
        told = self._told[rows, torch.from_numpy(phone).to(self.device)]
        return self._net.enter(tokens, told, torch.from_numpy(age).to(self.device))

    def _turn(self, places: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Rotary rows of places that are the same in all rows, or [B, W]."""
        cos, sin = self._cos[places], self._sin[places]
        return (cos, sin) if isinstance(places, slice) else (cos[:, None], sin[:, None])

    def _answer(
        self,
        h: Tensor,
        turn: tuple[Tensor, Tensor],
        bias: Tensor | None,
        window: WindowSlots,
        phone: Index,
        age: Index,
        part: EarlyExit | None = None,
    ) -> Logits:
        logits = self._net.run(h, turn, bias, self._cache, window, None if part is None else part.layers)
        kind = (phone == self._last[:, None]) + 2 * (age >= LONGEST - 1)
        return Logits(logits + self._forbidden[torch.from_numpy(kind).to(self.device)], None)


def _forbidden(codes: int) -> Tensor:
    """What is added to the logits [4, V]: inside the sentence, in its last phone, and both at the longest age."""
    stop = 2 * codes
    bias = torch.full((4, stop + 1), -torch.inf)
    bias[0, :stop] = 0.0
    bias[1, :codes] = 0.0
    bias[1, stop] = 0.0
    bias[2, codes:stop] = 0.0
    bias[3, stop] = 0.0
    return bias
