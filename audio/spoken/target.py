"""The voice's transformer wrapped as a target, which tracks the phone of each row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.audio.spoken.transformer import MAX_PHONE_TOKENS, SpokenTransformer
from mmspec.decoding.attention_masks import additive_mask, tree_mask
from mmspec.decoding.kv_cache import KVCache, WindowSlots
from mmspec.decoding.quantized_cache import cache_bits
from mmspec.decoding.target import EarlyExit, spread_layers
from mmspec.sampling.logits import Logits
from mmspec.sampling.rows import PerRow
from mmspec.sampling.tree import Tree

Index = NDArray[np.int64]
_PHONES_AHEAD = 3  # of the script that a drafter reads


def advance(phone: Index, age: Index, ends: NDArray[np.bool_]) -> tuple[Index, Index]:
    """Phone and age of the position after each token of a window, int64 [B, W] each.

    The age of a position is the number of tokens of its phone before it.

    Args:
        phone: Phone of the first token, int64 [B].
        age: Age of the first token, int64 [B].
        ends: Which tokens end their phone, bool [B, W].
    """
    index = np.arange(ends.shape[1])
    latest = np.maximum.accumulate(np.where(ends, index, -1), axis=1)
    return phone[:, None] + ends.cumsum(1), np.where(latest >= 0, index - latest, age[:, None] + 1 + index)


class SpokenTarget:
    """The transformer with the scripts of a batch.

    Slot i of the KV cache holds the input that predicts position i; it contains the phone of position i.

    Args:
        net: The transformer.
        features: Features of each row's script, int64 [J, columns].
        length: Positions per row.
        slack: Number of positions by which windows may reach past the end.
    """

    ROWS = (
        "_cache", "_script", "_last", "_phone", "_age", "_entries", PerRow("_features", latest=True),
        PerRow("_layer_features", latest=True),
    )  # fmt: skip
    SAME = ("_net",)

    def __init__(self, net: SpokenTransformer, features: Sequence[Index], length: int, slack: int) -> None:
        self.vocab_size = net.vocab_size
        self.layers = len(net.blocks)
        self.codes = net.codes
        self.device = net.start.device
        self._net = net
        most = max(map(len, features))
        padded = np.stack([np.pad(f, ((0, most - len(f)), (0, 0))) for f in features])
        self._script = net.embed_script(torch.from_numpy(padded).to(self.device))  # [B, J, dim]
        self._last = np.array([len(f) - 1 for f in features])  # last phone of each row
        capacity = length + slack + 2
        head_dim, dtype = len(net.start) // net.heads, net.start.dtype
        self._cache = KVCache(
            self.layers, len(features), net.heads, capacity, head_dim, dtype, self.device, cache_bits()
        )
        self._cos, self._sin = (t.to(net.start.dtype) for t in net.rotary(capacity))
        self._causal = torch.full((capacity, capacity), -torch.inf, dtype=net.start.dtype, device=self.device).triu(1)
        # Phone and age of each position, which every call updates.
        self._phone = np.zeros((len(features), capacity), dtype=np.int64)
        self._age = np.zeros((len(features), capacity), dtype=np.int64)
        self._entries: tuple[Index, Index] = (
            self._phone[:, :0],
            self._age[:, :0],
        )  # the same after the entries of a tree
        self._token_bias = _token_bias(net.codes).to(self.device, net.start.dtype)
        self._features: Tensor | None = None
        self._exit_features: Tensor | None = None  # of the last early exit
        self._collected: tuple[int, ...] = ()
        self._layer_features: Tensor | None = None

    def phone_and_age(self, at: Index) -> tuple[Index, Index]:
        """Phone and age of position `at` [B], int64 [B] each; see `advance`."""
        row_ids = np.arange(len(at))
        return self._phone[row_ids, at], self._age[row_ids, at]

    can_skip_layers = True

    def prefill(self) -> Logits:
        count = len(self._last)
        phone = age = np.zeros((count, 1), dtype=np.int64)
        first = self._net.start + self._net.age(torch.zeros(1, dtype=torch.int64, device=self.device))
        h = (first + self._script[:, 0])[:, None]
        return self._logits(h, self._rotary(slice(0, 1)), None, WindowSlots(0, 1), phone, age)

    def forward(self, tokens: Tensor, at: Index, early_exit: EarlyExit | None = None) -> Logits:
        width = tokens.shape[1]
        phone, age = advance(*self.phone_and_age(at), tokens.cpu().numpy() >= self.codes)
        phone = np.minimum(phone, self._last[:, None])
        h = self._embed(tokens, phone, age)
        if (at == at[0]).all():
            span = slice(int(at[0]) + 1, int(at[0]) + 1 + width)
            self._phone[:, span], self._age[:, span] = phone, age
            bias = self._causal[span, : span.stop] if width > 1 else None
            window = WindowSlots(span.start, span.stop)
            return self._logits(h, self._rotary(span), bias, window, phone, age, early_exit)
        slots = at[:, None] + np.arange(1, 1 + width)
        row_ids = np.arange(len(at))[:, None]
        self._phone[row_ids, slots], self._age[row_ids, slots] = phone, age
        index, end = torch.from_numpy(slots).to(self.device), int(slots.max()) + 1
        bias = self._causal[index, :end][:, None]
        return self._logits(h, self._rotary(index), bias, WindowSlots(end=end, slots=index), phone, age, early_exit)

    def forward_tree(
        self, tokens: Tensor, at: Index, tree: Tree, first: int = 0, early_exit: EarlyExit | None = None
    ) -> Logits:
        last = first + tokens.shape[1]
        phone, age = self._advance_tree(tokens.cpu().numpy(), at, tree, first)
        root = at + 1
        end = int(root.max()) + last
        depths = torch.from_numpy(root[:, None] + tree.depth[:, first:last]).to(self.device)
        slots = torch.from_numpy(root[:, None] + np.arange(first, last)).to(self.device)
        roots = torch.from_numpy(root).to(self.device)
        sees = tree.sees[:, first:last, 1:last]
        bias = additive_mask(tree_mask(roots, sees, end), self._causal.dtype, hidden=-torch.inf)
        h = self._embed(tokens, phone, age)
        window = WindowSlots(end=end, slots=slots)
        return self._logits(h, self._rotary(depths), bias, window, phone, age, early_exit)

    def settle(self, at: Index, path: Index) -> None:
        steps = np.arange(1, 1 + path.shape[1])
        row_ids = np.arange(len(at))[:, None]
        phone, age = self._entries
        self._phone[row_ids, at[:, None] + 1 + steps] = phone[row_ids, path]
        self._age[row_ids, at[:, None] + 1 + steps] = age[row_ids, path]
        if (path != steps).any():
            root = at[:, None] + 1
            self._cache.move(*(torch.from_numpy(root + p).to(self.device) for p in (path, steps)))

    @property
    def fused_layers(self) -> tuple[int, ...]:
        """The layers that a head fuses.

        The layers after the last one are the embeddings of the next phones of the script: the transformer reads a phone
        when its first token is due, and tokens further ahead depend on those that follow.
        """
        return (*spread_layers(self.layers), *range(self.layers + 1, self.layers + 1 + _PHONES_AHEAD))

    def collect_layers(self, layers: Sequence[int]) -> None:
        self._collected = tuple(layers)

    def layer_features(self) -> Tensor:
        assert self._layer_features is not None, "no call yet"
        return self._layer_features

    def features(self) -> Tensor:
        assert self._features is not None, "no call yet"
        return self._features

    def exit_features(self) -> Tensor:
        assert self._exit_features is not None, "no early exit yet"
        return self._exit_features

    def head(self, features: Tensor) -> Tensor:
        """Logits of features, without the bias that depends on the phone: drafts that it forbids are rejected."""
        return self._net.head(features)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV cache."""
        return self._cache.nbytes

    def after_join(self, other: SpokenTarget) -> None:
        if len(other._causal) > len(self._causal):
            self._causal, self._cos, self._sin = other._causal, other._cos, other._sin
        self._entries = (self._phone[:, :0], self._age[:, :0])

    def _advance_tree(self, tokens: Index, at: Index, tree: Tree, first: int) -> tuple[Index, Index]:
        """Phone and age after each entry that is read, int64 [B, W] each; see `advance`."""
        batch_size, width = tokens.shape
        last = first + width
        row_ids = np.arange(batch_size)
        phone, age = np.zeros((2, batch_size, last), dtype=np.int64)
        if first == 0:
            root_phone, root_age = advance(*self.phone_and_age(at), tokens[:, :1] >= self.codes)
            phone[:, 0], age[:, 0] = np.minimum(root_phone[:, 0], self._last), root_age[:, 0]
            self._phone[row_ids, at + 1], self._age[row_ids, at + 1] = phone[:, 0], age[:, 0]
        else:
            known = min(self._entries[0].shape[1], first)
            phone[:, :known], age[:, :known] = self._entries[0][:, :known], self._entries[1][:, :known]
            phone[:, 0], age[:, 0] = self.phone_and_age(at + 1)  # `forward` may have read the root
        for entry in range(max(first, 1), last):
            parent = np.broadcast_to(tree.parents[:, entry - 1], batch_size)
            ended = tokens[:, entry - first] >= self.codes
            phone[:, entry] = np.minimum(phone[row_ids, parent] + ended, self._last)
            age[:, entry] = np.where(ended, 0, age[row_ids, parent] + 1)
        self._entries = phone, age
        return phone[:, first:], age[:, first:]

    def _embed(self, tokens: Tensor, phone: Index, age: Index) -> Tensor:
        row_ids = torch.arange(len(tokens), device=self.device)[:, None]
        script = self._script[row_ids, torch.from_numpy(phone).to(self.device)]
        return self._net.embed(tokens, script, torch.from_numpy(age).to(self.device))

    def _rotary(self, positions: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of positions: a slice, the same for all rows, or int64 [B, W]."""
        cos, sin = self._cos[positions], self._sin[positions]
        return (cos, sin) if isinstance(positions, slice) else (cos[:, None], sin[:, None])

    def _logits(
        self,
        h: Tensor,
        rotary: tuple[Tensor, Tensor],
        bias: Tensor | None,
        window: WindowSlots,
        phone: Index,
        age: Index,
        early_exit: EarlyExit | None = None,
    ) -> Logits:
        runs = None if early_exit is None else early_exit.runs
        states: list[Tensor] | None = [] if self._collected and early_exit is None else None
        features = self._net.run(h, rotary, bias, self._cache, window, runs, states)
        if early_exit is None:
            self._features = features
        else:
            self._exit_features = features
        if states is not None:
            row_ids = torch.arange(len(h), device=self.device)[:, None]
            for ahead in range(1, 1 + _PHONES_AHEAD):
                later = np.minimum(phone + ahead, self._last[:, None])
                states.append(self._script[row_ids, torch.from_numpy(later).to(self.device)])
            self._layer_features = torch.cat([states[n] for n in self._collected], dim=-1)
        logits = self._net.head(features)
        case = (phone == self._last[:, None]) + 2 * (age >= MAX_PHONE_TOKENS - 1)
        return Logits(logits + self._token_bias[torch.from_numpy(case).to(self.device)], None)


def _token_bias(codes: int) -> Tensor:
    """Logit biases [4, V], 0 or -inf: inside the sentence, in its last phone, both at the largest age of a phone."""
    # Before the last phone the sentence cannot stop, and in it no other phone can follow. At the largest age a token
    # must end the phone or the sentence.
    stop = 2 * codes
    bias = torch.full((4, stop + 1), -torch.inf)
    bias[0, :stop] = 0.0
    bias[1, :codes] = 0.0
    bias[1, stop] = 0.0
    bias[2, codes:stop] = 0.0
    bias[3, stop] = 0.0
    return bias
