"""A decoder-only transformers model wrapped as a target: prompts, cache, masks, positions and guidance rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from mmspec.decoding.attention_masks import additive_mask, tree_mask
from mmspec.decoding.cuda_graphs import CUDAGraphTarget, wanted
from mmspec.decoding.target import EarlyExit
from mmspec.hf.decoder_layers import count_layers, first_layers
from mmspec.hf.slot_cache import SlotCache
from mmspec.sampling.logits import Logits, cfg_rows, split_cfg
from mmspec.sampling.tree import Tree


@dataclass(frozen=True)
class Backbone:
    """The parts of a model that decoding uses; they are called as they are, quantised or sharded or not.

    Attributes:
        decoder: Takes `inputs_embeds` [R, W, D], `attention_mask` [R or 1, 1, W, end] (0 or very negative, added to the
            scores), `position_ids` [R, W] or [axes, R, W] and `past_key_values`; gives `last_hidden_state` [R, W, D].
        embed: The loop's tokens int64 [R, W] to embeddings.
        head: Hidden states to logits over the loop's tokens, [R, W, V].
        vocab_size: V.
        device: Where the loop's tensors live.
    """

    decoder: Callable[..., Any]
    embed: Callable[[Tensor], Tensor]
    head: Callable[[Tensor], Tensor]
    vocab_size: int
    device: torch.device


@dataclass(frozen=True)
class Prompt:
    """The prompts of one side, padded on the left.

    Attributes:
        embeds: [B, T, D].
        mask: bool [B, T], False where padding is.
        positions: int64 [axes, B, T] of the prompt; one axis for ordinary models.
        following: int64 [axes, B, N], of the tokens after it; None counts on from the last one.
    """

    embeds: Tensor
    mask: Tensor
    positions: Tensor
    following: Tensor | None = None


class CausalTarget:
    """A model with its prompts given, one row each.

    Args:
        backbone: The model.
        cond: The prompts.
        uncond: Those of the unconditional side, of any length of their own; None turns guidance off.
        length: Tokens to be made.
        slack: How many slots a window may reach past the end.
    """

    def __init__(self, backbone: Backbone, cond: Prompt, uncond: Prompt | None, length: int, slack: int) -> None:
        self.vocab_size = backbone.vocab_size
        self.device = backbone.device
        self._backbone = backbone
        self._guided = uncond is not None
        self._rows = len(cond.mask)
        sides = [cond] if uncond is None else [cond, uncond]
        t = self._prompt = max(side.mask.shape[1] for side in sides)
        capacity = t + length + slack
        self._embeds: Tensor | None = torch.cat([F.pad(s.embeds, (0, 0, t - s.mask.shape[1], 0)) for s in sides])
        # Tables by slot, [R, capacity] and [axes, R, capacity]: what is not padding, and positions.
        self._visible = torch.cat(
            [F.pad(F.pad(s.mask, (t - s.mask.shape[1], 0)), (0, length + slack), value=True) for s in sides]
        )
        self._positions = torch.cat([positions_by_slot(s, t, length, slack) for s in sides], dim=1)
        self._cache = SlotCache(capacity)
        self._features: Tensor | None = None
        self.layers = count_layers(backbone.decoder)
        self._parts: dict[int, Callable[..., Any]] = {}

    def prefill(self) -> Logits:
        assert self._embeds is not None, "prompts are read once"
        embeds, self._embeds = self._embeds, None
        return self._logits(self._read(embeds, np.zeros(self._rows, dtype=np.int64)), 1)

    def forward(self, tokens: Tensor, at: NDArray[np.int64], part: EarlyExit | None = None) -> Logits:
        embeds = self._backbone.embed(torch.cat([tokens] * self._sides_of(part)))
        return self._logits(self._read(embeds, self._prompt + at, part), part=part)

    def forward_tree(
        self, tokens: Tensor, at: NDArray[np.int64], tree: Tree, first: int = 0, part: EarlyExit | None = None
    ) -> Logits:
        last, sides = first + tokens.shape[1], self._sides_of(part)
        root = self._prompt + at
        end = int(root.max()) + last
        if (at == at[0]).all():
            self._cache.at(int(root[0]) + first, end)
        else:
            self._cache.at_slots(self._on(sides, root[:, None] + np.arange(first, last)), end)
        places = self._on(sides, root[:, None] + tree.depth[:, first:last])
        embeds = self._backbone.embed(tokens.repeat(sides, 1))
        bias = self._tree_bias(self._on(sides, root), tree.sees[:, first:last, 1:last], end, embeds.dtype)
        return self._logits(self._run(embeds, places, bias, part), part=part)

    def settle(self, at: NDArray[np.int64], path: NDArray[np.int64]) -> None:
        steps = np.arange(1, 1 + path.shape[1])
        if (path != steps).any():
            root, sides = self._prompt + at[:, None], self._sides_of(None)
            self._cache.move(self._on(sides, root + path), self._on(sides, root + steps))

    def select_rows(self, row_ids: list[int]) -> None:
        index = cfg_rows(row_ids, self._rows, self._guided, self.device)
        self._rows = len(row_ids)
        self._cache.select_rows(index)
        self._visible = self._visible[index]
        self._positions = self._positions[:, index]
        if self._features is not None:
            self._features = self._features[index.to(self._features.device)]

    def read(self, tokens: Tensor, slots: Tensor, end: int) -> tuple[Tensor, Tensor]:
        """As `mmspec.decoding.cuda_graphs.Capturable` has it."""
        embeds = self._backbone.embed(tokens)
        self._cache.at_slots(slots, end)
        features = self._run(embeds, slots, self._bias(slots, end, embeds.dtype), None)
        return self.head(features), features

    @property
    def rows(self) -> int:
        """How many rows run."""
        return self._rows

    @property
    def sides(self) -> int:
        """2 with guidance, else 1."""
        return self._sides_of(None)

    @property
    def capacity(self) -> int:
        """Slots per row."""
        return self._visible.shape[1]

    def slot(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slots of positions."""
        return self._prompt + at

    @property
    def movable(self) -> bool:
        """Whether layers lie on several devices, or come and go, so that no call of theirs is like the next."""
        decoder = self._backbone.decoder
        if not isinstance(decoder, nn.Module) or any(hasattr(module, "_hf_hook") for module in decoder.modules()):
            return True
        return any(p.device != self.device for p in decoder.parameters())

    def features(self) -> Tensor:
        assert self._features is not None, "nothing has been read yet"
        return self._features

    def head(self, features: Tensor) -> Tensor:
        return self._backbone.head(features).to(self.device)

    def _read(self, embeds: Tensor, start: NDArray[np.int64], part: EarlyExit | None = None) -> Tensor:
        """Hidden states [R, W, D] of a window whose rows begin at slots `start` (host int64 [B])."""
        width = embeds.shape[1]
        end = int(start.max()) + width
        slots = self._on(self._sides_of(part), start[:, None] + np.arange(width))
        if (start == start[0]).all():
            self._cache.at(int(start[0]), end)
        else:
            self._cache.at_slots(slots, end)
        return self._run(embeds, slots, self._bias(slots, end, embeds.dtype), part)

    def _run(self, embeds: Tensor, places: Tensor, bias: Tensor, part: EarlyExit | None) -> Tensor:
        """Hidden states [R, W, D] of tokens that have the positions of slots `places`, int64 [R, W]."""
        positions = self._positions[:, : len(places)].gather(2, places.expand(len(self._positions), -1, -1))
        out = self._decoder(part)(
            inputs_embeds=embeds,
            attention_mask=bias,
            position_ids=positions[0] if len(positions) == 1 else positions,
            past_key_values=self._cache,
            use_cache=True,
        )
        return out.last_hidden_state

    def _decoder(self, part: EarlyExit | None) -> Callable[..., Any]:
        """The whole decoder, or as many of its layers as a part has."""
        if part is None:
            return self._backbone.decoder
        if part.layers not in self._parts:
            self._parts[part.layers] = first_layers(self._backbone.decoder, part.layers)
        return self._parts[part.layers]

    def _sides_of(self, part: EarlyExit | None) -> int:
        """1, or 2 where a call, or a part of one, reads the unconditional side as well."""
        return 1 + (self._guided and (part is None or part.guided))

    def _on(self, sides: int, slots: NDArray[np.int64]) -> Tensor:
        """The same slots int64 [B, ...] on so many sides, [R, ...]."""
        return torch.from_numpy(np.concatenate([slots] * sides)).to(self.device)

    def _bias(self, slots: Tensor, end: int, dtype: torch.dtype) -> Tensor:
        """What each token may look at, as numbers to add to its scores, [R, 1, W, end]: 0, or very negative."""
        key = torch.arange(end, device=self.device)
        own = slots[..., None]
        # A token always sees itself: padding that saw nothing would be NaN, and stay in the cache.
        return additive_mask((self._visible[: len(slots), None, :end] & (key <= own)) | (key == own), dtype)

    def _tree_bias(self, root: Tensor, sees: Tensor, end: int, dtype: torch.dtype) -> Tensor:
        """The same for W entries of a tree: they see what the root (slots int64 [R]) sees, and what `sees` tells.

        `sees` is bool [B or 1, W, n], of the n slots after the root.
        """
        mask = tree_mask(root, sees, end) & self._visible[: len(root), None, :end]
        return additive_mask(mask, dtype)

    def _logits(self, features: Tensor, last: int = 0, part: EarlyExit | None = None) -> Logits:
        """Those of the last tokens of a window (0: of all), whose features are [R, W, D]."""
        if part is None:
            self._features = features
        return split_cfg(self.head(features[:, -last:]), self._sides_of(part) == 2)


def with_cuda_graphs(target: CausalTarget) -> CausalTarget | CUDAGraphTarget:
    """The target, read by recorded calls where its device has them and its weights stay where they are."""
    return CUDAGraphTarget(target) if wanted(target.device) and not target.movable else target


def positions_by_slot(prompt: Prompt, slots: int, length: int, slack: int) -> Tensor:
    """Positions int64 [axes, B, slots + length + slack] of a prompt moved to the right of its `slots`.

    Slots past the end repeat the last position: nobody reads their answers, and no model knows a later one.
    """
    following = prompt.following
    if following is None:
        count = torch.arange(1, length + 1, device=prompt.positions.device)
        following = prompt.positions[..., -1:] + count
    # Nobody wants to know what comes after the last token, so that its position does not count either.
    known = torch.cat([prompt.positions, following[..., : length - 1]], dim=-1)
    before = known.new_zeros(*known.shape[:2], slots - prompt.positions.shape[-1])
    after = known[..., -1:].expand(-1, -1, slots + length + slack - before.shape[-1] - known.shape[-1])
    return torch.cat([before, known, after], dim=-1)


def columns(head: nn.Module, low: int, high: int) -> Callable[[Tensor], Tensor]:
    """A head that gives only the logits of ids `low` to `high - 1`.

    A plain linear layer computes nothing else; one that is quantised, sharded or hooked runs as it is and is cut after.
    """
    # In this order: the weight of a layer of another kind may be anything, and reading it may cost.
    plain = type(head) is nn.Linear and type(head.weight.data) is Tensor
    if not plain or hasattr(head, "_hf_hook") or head._forward_hooks or head._forward_pre_hooks:
        return lambda hidden: head(hidden)[..., low:high]
    assert isinstance(head, nn.Linear)
    part, bias = head.weight[low:high], None if head.bias is None else head.bias[low:high]
    return lambda hidden: F.linear(hidden, part, bias)
