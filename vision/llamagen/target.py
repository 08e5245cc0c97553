"""LlamaGen as a target: conditions, KV cache, attention masks, guidance rows, and its CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.attention_masks import additive_mask, short_bias, tree_mask
from mmspec.decoding.batch import BatchState
from mmspec.decoding.graph_capture import use_cuda_graphs, without_plans
from mmspec.decoding.kv_cache import KVCache, LayerCopies, WindowSlots
from mmspec.decoding.quantized_cache import cache_bits
from mmspec.decoding.target import EarlyExit, LayerRun, Target, check_prompts, embed_with_prompts, spread_layers
from mmspec.kernels.backend import choose
from mmspec.sampling.logits import Logits, split_cfg
from mmspec.sampling.numbers import on_device
from mmspec.sampling.rows import PerRow, RowNames
from mmspec.sampling.tree import Tree
from mmspec.vision.llamagen.transformer import LlamaGenTransformer, Span, padding_bias


class LlamaGenTarget:
    """A LlamaGen with its conditions; see `mmspec.decoding.target.Target`.

    Condition slots come first in the KV cache, then one slot per token. With guidance the batch is doubled: R = 2 * B
    rows, the conditional ones first.

    Args:
        gpt: The transformer.
        condition: Class ids int64 [B], or caption features [B, T, C].
        uncond: The unconditional conditions, of the same shape; None turns guidance off.
        condition_mask: [B, T], 0 on padded caption slots. It applies to the unconditional rows as well, as in the
            published sampler.
        slack: Slots that a window may extend past the end of the image.

    Attributes:
        vocab_size: V.
        device: The device of tokens and logits.
        cell: The shape of a token.
        layers: Layers that an early exit can choose from.
    """

    ROWS: ClassVar[RowNames] = (
        "_cache",
        PerRow("_features", latest=True),
        PerRow("_layer_features", latest=True),
        "_padding",
    )
    SAME: ClassVar[tuple[str, ...]] = ("_gpt", "_guided", "capacity")

    def __init__(
        self,
        gpt: LlamaGenTransformer,
        condition: Tensor,
        uncond: Tensor | None,
        condition_mask: Tensor | None,
        slack: int,
    ) -> None:
        c = gpt.config
        self.vocab_size: int = c.vocab_size
        self.cell = gpt.cell
        # Read once: models of diffusers search all of their modules for hooks to answer.
        self.device, self._dtype = gpt.device, gpt.dtype
        self.layers: int = c.n_layer
        self._gpt = gpt
        self._fuses = False
        if choose(self.device.type) == "triton" and cache_bits() is None:
            from mmspec.vision.llamagen.fused_layers import can_fuse

            self._fuses = can_fuse(gpt)
        self._guided = uncond is not None
        self._condition = condition if uncond is None else torch.cat([condition, uncond])
        self._slots: int = c.cls_token_num
        self._length = length = c.grid_size**2
        capacity = self._slots + length + slack
        heads, head_dim = c.n_head, c.dim // c.n_head
        shape = c.n_layer, len(self._condition), heads, capacity, head_dim
        self._cache = KVCache(*shape, self._dtype, self.device, cache_bits())
        self._features: Tensor | None = None
        self._exit_features: Tensor | None = None  # of the last early exit
        self._collected: tuple[int, ...] = ()
        self._layer_features: Tensor | None = None
        self._prompts: Tensor | None = None  # embeddings of prompt tokens, [m, D]
        # Tables by slot. Slots past the end repeat the last one; their logits are not used.
        past = torch.arange(capacity, device=self.device).clamp(max=self._slots + length - 1)
        cos, sin = gpt.rope(self.device)
        self._cos, self._sin = cos[past], sin[past]
        predicted = (past - self._slots + 1).clamp(0, length - 1)
        zeros = torch.zeros(capacity, c.dim, dtype=self._dtype, device=self.device)
        self._position = gpt.add_position(zeros, predicted)
        self._position[: self._slots - 1] = 0
        self._causal = torch.full((capacity, capacity), -torch.inf, dtype=self._dtype, device=self.device).triu(1)
        self._padding: Tensor | None = None
        if condition_mask is not None and not bool(condition_mask.all()):
            self._padding = padding_bias(condition_mask, capacity, self._dtype).repeat(1 + self._guided, 1, 1, 1)

    short_cache = True  # see `mmspec.decoding.target.reads_short_cache`
    can_skip_layers = can_reuse_updates = True

    def prefill(self) -> Logits:
        t = self._slots
        h = self._gpt.cls_embedding(self._condition).to(self._dtype) + self._position[:t]
        return self._logits(h, self._span(0, t, len(h)), 1)

    def forward(self, tokens: Tensor, at: NDArray[np.int64], early_exit: EarlyExit | None = None) -> Logits:
        width, factor = tokens.shape[1], self._cfg_factor(early_exit)
        tokens = torch.cat([tokens] * factor)
        h = self._gpt.embed(tokens)
        recent = 0 if early_exit is None else early_exit.recent
        if (at == at[0]).all():
            start = self._slots + int(at[0])
            span = self._span(start, start + width, len(tokens))
            h = h + self._position[start : start + width]
            here = torch.arange(start, start + width, device=self.device)[None]
        else:
            slots = self._repeat(factor, self._slots + at[:, None] + np.arange(width))
            span = self._ragged_span(slots, self._slots + int(at.max()) + width)
            h = h + self._position[slots]
            here = slots
        if recent and span.window is not None:
            prompt = torch.tensor([self._slots], device=self.device)
            start = self._slots + int(at.min())
            span.bias = short_bias(span.bias, here, prompt, recent, span.window, self._slots, start).to(self._dtype)
        return self._logits(h, span, width, early_exit)

    def read(
        self,
        tokens: Tensor,
        slots: Tensor,
        end: int,
        early_exit: EarlyExit | None = None,
        states: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        h = self._gpt.embed(tokens) + self._position[slots]
        span = self._ragged_span(slots, end)
        with without_plans(self.device):
            run = LayerRun(early_exit, self._collected, states)
            # A part that reads the states of a full call rounds as that one does.
            if self._fuses and (early_exit is None or early_exit.reuse):
                from mmspec.vision.llamagen.fused_layers import fused_features

                assert span.bias is not None
                rotary = span.cos[:, 0], span.sin[:, 0]
                features = fused_features(self._gpt, h, *rotary, slots, span.bias, self._cache, end, run)
            else:
                features = self._gpt.features(h, span, self._cache, run)
        return self._gpt.output(features), features

    @property
    def cfg_factor(self) -> int:
        """Cache rows per row of the batch: 2 with guidance, else 1."""
        return self._cfg_factor(None)

    @property
    def rows(self) -> int:
        """Rows that are still decoded, B."""
        return self._cache.rows // self.cfg_factor

    @property
    def capacity(self) -> int:
        """Slots of the KV cache per row."""
        return len(self._causal)

    def slot(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slots of positions, host int64 of the same shape."""
        return self._slots + at

    def shapes(self) -> tuple[Any, ...]:
        return self._guided, *((t.shape, t.dtype, t.device) for t in self.tensors())

    def tensors(self) -> list[Tensor]:
        padding = [] if self._padding is None else [self._padding]
        keys, values = self._cache.keys, self._cache.values
        assert isinstance(keys, Tensor) and isinstance(values, Tensor), "quantized caches are not captured"
        return [keys, values, self._cos, self._sin, self._position, self._causal, *padding]

    def take_over(self, tensors: list[Tensor]) -> None:
        for own, taken in zip(self.tensors(), tensors, strict=True):
            taken.copy_(own)
        self._cache.keys, self._cache.values, self._cos, self._sin, self._position, self._causal, *padding = tensors
        self._padding = padding[0] if padding else None

    def forward_tree(
        self, tokens: Tensor, at: NDArray[np.int64], tree: Tree, first: int = 0, early_exit: EarlyExit | None = None
    ) -> Logits:
        width, factor = tokens.shape[1], self._cfg_factor(early_exit)
        last = first + width
        root = self._slots + at
        depths = tree.positions(root, first, last)
        there = depths.there  # where the host does not know them
        at_depth = self._repeat(factor, depths.host) if there is None else torch.cat([there] * factor)
        embeds = embed_with_prompts(self._gpt.embed, self._prompts, tokens.repeat(factor, 1), self.vocab_size)
        h = embeds + self._position[at_depth]
        end = int(root.max()) + last
        bias = self._tree_bias(self._repeat(factor, root), tree.sees[:, first:last, 1:last], end)
        window = WindowSlots(end - width, end)
        if (at != at[0]).any():
            window.slots = self._repeat(factor, root[:, None] + np.arange(first, last))
        span = Span(self._cos[at_depth][:, None], self._sin[at_depth][:, None], bias, window)
        return self._logits(h, span, width, early_exit)

    def settle(self, at: NDArray[np.int64], path: NDArray[np.int64]) -> None:
        steps = np.arange(1, 1 + path.shape[1])
        if (path != steps).any():
            root, factor = self._slots + at[:, None], self._cfg_factor(None)
            self._cache.move(self._repeat(factor, root + path), self._repeat(factor, root + steps))

    def read_prompts(self, embeddings: Tensor) -> None:
        self._prompts = check_prompts(embeddings, self._gpt.config.dim)

    def before_join(self, other: LlamaGenTarget, state: BatchState, other_state: BatchState) -> None:
        if self._padding is not None or other._padding is not None:
            for one in (self, other):
                if one._padding is None:
                    one._padding = one._causal.new_zeros(one._cache.rows, 1, self.capacity, self.capacity)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV cache."""
        return self._cache.nbytes

    def features(self) -> Tensor:
        assert self._features is not None, "no call yet"
        return self._features

    def exit_features(self) -> Tensor:
        assert self._exit_features is not None, "no early exit yet"
        return self._exit_features

    def head(self, features: Tensor) -> Tensor:
        return self._gpt.output(features)

    @property
    def fused_layers(self) -> tuple[int, ...]:
        return spread_layers(self.layers)

    def collect_layers(self, layers: Sequence[int]) -> None:
        self._collected = tuple(layers)

    def layer_features(self) -> Tensor:
        assert self._layer_features is not None, "no call yet"
        return self._layer_features

    def set_layer_features(self, states: Tensor) -> None:
        self._layer_features = states

    def reread(self, tokens: Tensor, at: NDArray[np.int64], states: Tensor, early_exit: EarlyExit) -> Logits:
        other = copy(self)
        other._cache, other._layer_features = LayerCopies(self._cache), states
        return other.forward(tokens, at, early_exit)

    def _logits(self, h: Tensor, span: Span, last: int, early_exit: EarlyExit | None = None) -> Logits:
        """Logits of the last `last` slots of a window, given its embeddings [R, W, D]."""
        run = LayerRun(early_exit, self._collected, None if early_exit is None else self._layer_features)
        with without_plans(self.device):
            features = self._gpt.features(h, span, self._cache, run)
        if early_exit is None:
            self._features, self._layer_features = features, run.states
        else:
            self._exit_features = features
        return split_cfg(self._gpt.output(features[:, -last:]), self._cfg_factor(early_exit) == 2)

    def _cfg_factor(self, early_exit: EarlyExit | None) -> int:
        """2 if a call, or an early exit, also reads the unconditional rows, else 1."""
        return 1 + (self._guided and (early_exit is None or early_exit.guided))

    def _repeat(self, factor: int, slots: NDArray[np.int64]) -> Tensor:
        """Host slots int64 [B, ...] for the conditional rows, and for the unconditional ones if `factor` is 2."""
        return on_device(np.concatenate([slots] * factor), self.device)

    def _span(self, start: int, end: int, batch_size: int) -> Span:
        """The first `batch_size` rows of the cache, all at slots `start` to `end - 1`."""
        bias: Tensor | None = None
        if self._padding is not None:
            bias = self._causal[start:end, :end] + self._padding[:batch_size, :, start:end, :end]
        elif end - start > 1:
            bias = self._causal[start:end, :end]
        return Span(self._cos[start:end], self._sin[start:end], bias, WindowSlots(start, end))

    def _ragged_span(self, slots: Tensor, end: int) -> Span:
        """Rows at slots int64 [R, W]."""
        bias = self._causal[slots, :end][:, None]
        if self._padding is not None:
            # A window has no condition slots, so padding is hidden from all of its slots alike.
            bias = bias + self._padding[: len(slots), :, -1:, :end]
        return Span(self._cos[slots][:, None], self._sin[slots][:, None], bias, WindowSlots(end=end, slots=slots))

    def _tree_bias(self, root: Tensor, sees: Tensor, end: int) -> Tensor:
        """The additive mask [R, 1, W, end] of W entries of a tree; see `mmspec.decoding.attention_masks.tree_mask`."""
        bias = additive_mask(tree_mask(root, sees, end), self._causal.dtype, hidden=-torch.inf)
        return bias if self._padding is None else bias + self._padding[: len(root), :, -1:, :end]


def new_target(
    gpt: LlamaGenTransformer, condition: Tensor, uncond: Tensor | None, mask: Tensor | None, slack: int
) -> Target:
    """A `LlamaGenTarget` of these arguments, with its windows captured in CUDA graphs on a CUDA device."""
    if not use_cuda_graphs(gpt.device) or _hooked(gpt):
        return LlamaGenTarget(gpt, condition, uncond, mask, slack)
    from mmspec.decoding.kept_graphs import ROUND, with_kept_graphs

    # Rounded up, so that recipes with different windows have the same shapes.
    slack += -(gpt.config.cls_token_num + gpt.config.grid_size**2 + slack) % ROUND
    # Ordinary tensors, because later calls may write to them outside of inference mode.
    with torch.inference_mode(False), torch.no_grad():
        target = LlamaGenTarget(gpt, condition, uncond, mask, slack)
    return with_kept_graphs(target, gpt)


def _hooked(gpt: LlamaGenTransformer) -> bool:
    """Whether a hook of accelerate or diffusers moves or casts weights, which rules out CUDA graphs."""
    return any(hasattr(m, "_hf_hook") or hasattr(m, "_diffusers_hook") for m in gpt.modules())
