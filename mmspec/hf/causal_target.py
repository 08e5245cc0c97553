"""A decoder-only transformers model as a target: prompts, KV cache, attention masks, positions and guidance rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from mmspec.decoding.attention_masks import additive_mask, short_bias, tree_mask
from mmspec.decoding.batch import BatchState
from mmspec.decoding.cuda_graphs import CUDAGraphTarget
from mmspec.decoding.graph_capture import use_cuda_graphs, without_plans
from mmspec.decoding.kept_graphs import ROUND, with_kept_graphs
from mmspec.decoding.target import EarlyExit, LayerRun, check_prompts, embed_with_prompts, spread_layers
from mmspec.errors import ArgumentError
from mmspec.hf.attention import refuse_flash_attention
from mmspec.hf.cache_name import cache_input
from mmspec.hf.decoder_layers import DecoderLayers, chosen_layers, count_layers, hooked_layers
from mmspec.hf.fused_layers import can_fuse, fused_features
from mmspec.hf.grouped_queries import folded_groups
from mmspec.hf.prompt_slots import at_places, extended, positions_by_slot
from mmspec.hf.slot_cache import SlotCache, SlotCopies
from mmspec.sampling.logits import Logits, split_cfg
from mmspec.sampling.numbers import on_device
from mmspec.sampling.rows import PerRow, RowNames
from mmspec.sampling.tree import Tree


@dataclass(frozen=True)
class Backbone:
    """The parts of a model that decoding calls. They may be quantised, sharded or compiled.

    Attributes:
        decoder: Takes `inputs_embeds` [R, W, D], `attention_mask` [R or 1, 1, W, end] (added to the attention scores),
            `position_ids` [R, W] or [axes, R, W], and `cache` or `past_key_values`; returns an object with
            `last_hidden_state` [R, W, D].
        embed: Tokens of the loop, int64 [R, W, *cell], to embeddings [R, W, D].
        head: Hidden states [R, W, D] to logits over the loop's tokens, [R, W, *cell, V].
        vocab_size: V, the number of tokens in the loop.
        device: The device of the loop's tensors.
        cell: The shape of a token: () for an id, (K,) for a column of K codes.
    """

    decoder: Callable[..., Any]
    embed: Callable[[Tensor], Tensor]
    head: Callable[[Tensor], Tensor]
    vocab_size: int
    device: torch.device
    cell: tuple[int, ...] = ()


@dataclass(frozen=True)
class Prompt:
    """The conditional or the unconditional prompts, padded on the left.

    Attributes:
        embeds: Embeddings [B, T, D].
        mask: bool [B, T], False on padding.
        positions: Position ids int64 [axes, B, T] of the prompt; one axis for ordinary models.
        following: Position ids int64 [axes, B, N] of the tokens after the prompt; None continues from the last one.
        added: Embeddings [B, n, D] that are added to those of the first n tokens after the prompt, the last of them to
            all later ones; or None.
    """

    embeds: Tensor
    mask: Tensor
    positions: Tensor
    following: Tensor | None = None
    added: Tensor | None = None


class CausalTarget:
    """A model with its prompts, one per row; see `mmspec.decoding.target.Target`.

    Each row has slots in the KV cache: the left-padded prompt, then one per token. With guidance the batch is doubled:
    R = 2 * B rows, the conditional ones first.

    Args:
        backbone: The model.
        uncond: The unconditional prompts, which may have another length; None turns guidance off.
        length: Tokens to generate.
        slack: Slots that a window may extend past the end of the sequence.

    Attributes:
        vocab_size: V.
        device: The device of tokens and logits.
        cell: The shape of a token.
        layers: Layers that an early exit can choose from; 0 if the model cannot exit early.

    Raises:
        ArgumentError: If the model computes attention with a kernel that takes no masks.
    """

    ROWS: ClassVar[RowNames] = (
        "_cache", PerRow("_visible", fill=True), PerRow("_positions", dim=1), "_embeds", "_prompt", "_first_slots",
        "_added", PerRow("_features", latest=True), PerRow("_layer_features", latest=True),
    )  # fmt: skip
    SAME: ClassVar[tuple[str, ...]] = ("vocab_size", "_guided", "_kind")

    def __init__(self, backbone: Backbone, cond: Prompt, uncond: Prompt | None, length: int, slack: int) -> None:
        refuse_flash_attention(backbone.decoder)
        self.vocab_size = backbone.vocab_size
        self.device = backbone.device
        self.cell = backbone.cell
        self._backbone = backbone
        self._guided = uncond is not None
        prompts = [cond] if uncond is None else [cond, uncond]
        t = max(prompt.mask.shape[1] for prompt in prompts)
        self._prompt = np.full(len(cond.mask), t)  # host int64 [B], slots of each row's prompt
        capacity = t + length + slack
        self._embeds: Tensor | None = torch.cat([F.pad(p.embeds, (0, 0, t - p.mask.shape[1], 0)) for p in prompts])
        # By slot: whether it is not padding, bool [R, capacity], and its position ids, int64 [axes, R, capacity].
        self._visible = torch.cat(
            [F.pad(F.pad(p.mask, (t - p.mask.shape[1], 0)), (0, length + slack), value=True) for p in prompts]
        )
        positions = [positions_by_slot(p.positions, p.following, t, length, slack) for p in prompts]
        self._positions = torch.cat(positions, dim=1)
        added = [prompt.added for prompt in prompts if prompt.added is not None]
        self._added = torch.cat(added) if added else None  # [R, n, D]
        self._first_slots = torch.full((len(self._visible),), t, device=self.device)  # int64 [R], after the prompts
        self._cache = SlotCache(capacity)
        self._features: Tensor | None = None
        self._exit_features: Tensor | None = None  # of the last early exit
        self._collected: tuple[int, ...] = ()
        self._layer_features: Tensor | None = None
        self._prompts: Tensor | None = None  # embeddings of prompt tokens, [m, D]
        self.layers = count_layers(backbone.decoder)
        self.can_reuse_updates = not isinstance(backbone.decoder, DecoderLayers) or backbone.decoder.plain_states
        self._early_exits: dict[tuple[int, ...], Callable[..., Any]] = {}
        self._fuses = can_fuse(backbone.decoder)

    short_cache = True  # see `mmspec.decoding.target.reads_short_cache`
    can_skip_layers = True

    def prefill(self) -> Logits:
        assert self._embeds is not None, "prefill() is called once"
        embeds, self._embeds = self._embeds, None
        return self._logits(self._read(embeds, np.zeros(self.rows, dtype=np.int64)), 1)

    def forward(self, tokens: Tensor, at: NDArray[np.int64], early_exit: EarlyExit | None = None) -> Logits:
        factor = self._cfg_factor(early_exit)
        embeds = self._embed(torch.cat([tokens] * factor))
        if self._added is not None:
            embeds = self._with_added(embeds, self._repeat(factor, self.slot(at[:, None] + np.arange(tokens.shape[1]))))
        return self._logits(self._read(embeds, self._prompt + at, early_exit), early_exit=early_exit)

    def forward_tree(
        self, tokens: Tensor, at: NDArray[np.int64], tree: Tree, first: int = 0, early_exit: EarlyExit | None = None
    ) -> Logits:
        last, factor = first + tokens.shape[1], self._cfg_factor(early_exit)
        root = self._prompt + at
        end = int(root.max()) + last
        if (root == root[0]).all():
            self._cache.at(int(root[0]) + first, end)
        else:
            self._cache.at_slots(self._repeat(factor, root[:, None] + np.arange(first, last)), end)
        depths = tree.positions(root, first, last)
        there = depths.there  # where the host does not know them
        at_depth = self._repeat(factor, depths.host) if there is None else torch.cat([there] * factor)
        embeds = self._with_added(self._embed(torch.cat([tokens] * factor)), at_depth)
        mask = self._tree_mask(self._repeat(factor, root), tree.sees[:, first:last, 1:last], end, embeds.dtype)
        return self._logits(self._run(embeds, at_depth, mask, early_exit), early_exit=early_exit)

    def settle(self, at: NDArray[np.int64], path: NDArray[np.int64]) -> None:
        steps = np.arange(1, 1 + path.shape[1])
        if (path != steps).any():
            root, factor = self.slot(at[:, None]), self._cfg_factor(None)
            self._cache.move(self._repeat(factor, root + path), self._repeat(factor, root + steps))

    def read_prompts(self, embeddings: Tensor) -> None:
        assert self._embeds is not None, "before the prefill"
        self._prompts = check_prompts(embeddings, self._embeds.shape[-1])

    @property
    def _kind(self) -> tuple[type, int, bool]:
        """What targets of one model have in common."""
        return type(self._backbone.decoder), len(self._positions), self._added is None

    def before_join(self, other: CausalTarget, state: BatchState, other_state: BatchState) -> None:
        if self._added is not None and other._added is not None:
            longest = max(self._added.shape[1], other._added.shape[1])
            self._added, other._added = extended(self._added, longest), extended(other._added, longest)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV cache."""
        return self._cache.nbytes

    def read(
        self,
        tokens: Tensor,
        slots: Tensor,
        end: int,
        early_exit: EarlyExit | None = None,
        states: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        embeds = self._with_added(self._backbone.embed(tokens), slots)
        self._cache.at_slots(slots, end)
        mask = self._causal_mask(slots, end, embeds.dtype)
        run = LayerRun(early_exit, self._collected, states)
        # A part that reads the states of a full call rounds as that one does.
        if (early_exit is None or early_exit.reuse) and self._reads_fused(embeds):
            positions = self._positions[0, : len(slots)].gather(1, slots)
            with without_plans(self.device), folded_groups(self.device):
                features = fused_features(self._backbone.decoder, embeds, positions, slots, mask, self._cache, run)
        else:
            features = self._run(embeds, slots, mask, early_exit, run)
        return self.head(features), features

    def _reads_fused(self, embeds: Tensor) -> bool:
        """Whether `mmspec.hf.fused_layers` reads a window: a known decoder, and a cache of numbers of its dtype."""
        if not self._fuses or len(self._positions) > 1 or not self._cache.layers:
            return False
        stored = self._cache.layers[0].keys
        return isinstance(stored, Tensor) and stored.dtype == embeds.dtype == self._backbone.decoder.dtype  # type: ignore[attr-defined]

    def round_capacity(self, multiple: int) -> None:
        """Rounds the slots per row up to a multiple; called before the prefill."""
        more = -self.capacity % multiple
        self._visible = F.pad(self._visible, (0, more), value=True)
        last = self._positions[..., -1:].expand(*self._positions.shape[:-1], more)
        self._positions = torch.cat([self._positions, last], dim=-1)
        if self._added is not None:
            self._added = extended(self._added, -(-self._added.shape[1] // multiple) * multiple)
        self._cache = SlotCache(self.capacity)

    def shapes(self) -> tuple[Any, ...]:
        assert self._embeds is not None, "before the prefill"
        added = None if self._added is None else self._added.shape
        return self._visible.shape, self._positions.shape, self._embeds.dtype, self._guided, added

    def tensors(self) -> list[Tensor]:
        added = [] if self._added is None else [self._added, self._first_slots]
        return [self._visible, self._positions, *added, *self._cache.tensors()]

    def take_over(self, tensors: list[Tensor]) -> None:
        visible, positions, *stored = tensors
        with torch.inference_mode():  # the tensors were made in it
            self._visible, self._positions = visible.copy_(self._visible), positions.copy_(self._positions)
            if self._added is not None:
                added, first_slots, *stored = stored
                self._added, self._first_slots = added.copy_(self._added), first_slots.copy_(self._first_slots)
            self._cache.take_over(stored)

    @property
    def rows(self) -> int:
        """Rows that are still decoded, B."""
        return len(self._prompt)

    @property
    def cfg_factor(self) -> int:
        """Cache rows per row of the batch: 2 with guidance, else 1."""
        return self._cfg_factor(None)

    @property
    def capacity(self) -> int:
        """Slots of the KV cache per row."""
        return self._visible.shape[1]

    def slot(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slots of positions, host int64 [B] or [B, W], of the same shape."""
        return self._prompt.reshape(-1, *(1,) * (at.ndim - 1)) + at

    @property
    def backbone(self) -> Backbone:
        """The parts of the model."""
        return self._backbone

    @property
    def module(self) -> nn.Module | None:
        """The decoder as a module; None if it is none, or the layers of none."""
        decoder: Any = self._backbone.decoder
        decoder = decoder.module if isinstance(decoder, DecoderLayers) else decoder
        return decoder if isinstance(decoder, nn.Module) else None

    @property
    def dispatched(self) -> bool:
        """Whether CUDA graphs are ruled out, see `is_dispatched`."""
        return self.module is None or is_dispatched(self.module, self.device)

    def prompt_padding(self) -> NDArray[np.int64]:
        return (~self._visible[:, : int(self._prompt.max())]).sum(1).cpu().numpy()

    def features(self) -> Tensor:
        assert self._features is not None, "no call yet"
        return self._features

    def exit_features(self) -> Tensor:
        assert self._exit_features is not None, "no early exit yet"
        return self._exit_features

    def head(self, features: Tensor) -> Tensor:
        return self._backbone.head(features).to(self.device)

    @property
    def fused_layers(self) -> tuple[int, ...]:
        return spread_layers(self.layers) if self.can_reuse_updates else ()

    def collect_layers(self, layers: Sequence[int]) -> None:
        if not self.can_reuse_updates:
            name = type(self._backbone.decoder).__name__
            raise ArgumentError(f"a drafter that reads states of layers is not possible here: {name} provides none")
        self._collected = tuple(layers)

    def layer_features(self) -> Tensor:
        """Transformers returns the last layer after its norm."""
        assert self._layer_features is not None, "no call yet"
        return self._layer_features

    def set_layer_features(self, states: Tensor) -> None:
        self._layer_features = states

    def reread(self, tokens: Tensor, at: NDArray[np.int64], states: Tensor, early_exit: EarlyExit) -> Logits:
        other = copy(self)
        other._cache, other._layer_features = SlotCopies(self._cache), states
        return other.forward(tokens, at, early_exit)

    def _embed(self, tokens: Tensor) -> Tensor:
        """Embeddings [R, W, D] of tokens int64 [R, W, *cell], prompt tokens among them."""
        return embed_with_prompts(self._backbone.embed, self._prompts, tokens, self.vocab_size)

    def _with_added(self, embeds: Tensor, slots: Tensor) -> Tensor:
        """Embeddings [R, W, D] with what is added to those of tokens in these slots, int64 [R, W]."""
        if self._added is None:
            return embeds
        index = slots - self._first_slots[: len(slots), None]
        return embeds + at_places(self._added, index.clamp(0, self._added.shape[1] - 1))

    def _read(self, embeds: Tensor, start: NDArray[np.int64], early_exit: EarlyExit | None = None) -> Tensor:
        """Hidden states [R, W, D] of a window that begins at slots `start`, host int64 [B]."""
        width = embeds.shape[1]
        end = int(start.max()) + width
        slots = self._repeat(self._cfg_factor(early_exit), start[:, None] + np.arange(width))
        if (start == start[0]).all():
            self._cache.at(int(start[0]), end)
        else:
            self._cache.at_slots(slots, end)
        mask = self._causal_mask(slots, end, embeds.dtype)
        if early_exit is not None and early_exit.recent:
            prompt = self._repeat(self._cfg_factor(early_exit), self._prompt)
            first = int(self._prompt.max())
            mask = short_bias(mask, slots, prompt, early_exit.recent, self._cache.window, first, int(start.min()))
        return self._run(embeds, slots, mask, early_exit)

    def _run(
        self, embeds: Tensor, slots: Tensor, mask: Tensor, early_exit: EarlyExit | None, run: LayerRun | None = None
    ) -> Tensor:
        """Hidden states [R, W, D] of tokens in `slots`, int64 [R, W]; sets `layer_features` without `run`."""
        positions = self._positions[:, : len(slots)].gather(2, slots.expand(len(self._positions), -1, -1))
        own = run or LayerRun(early_exit, self._collected, None if early_exit is None else self._layer_features)
        # Only where layers cannot be called otherwise: the model has hooks for it ever after, which rule out graphs.
        asks = early_exit is None and bool(self._collected) and not self.layers
        with without_plans(self.device), folded_groups(self.device):
            decoder = self._decoder(early_exit, own)
            out = decoder(
                inputs_embeds=embeds,
                attention_mask=mask,
                position_ids=positions[0] if len(positions) == 1 else positions,
                use_cache=True,
                **cache_input(decoder, self._cache),
                **({"output_hidden_states": True} if asks else {}),
            )
        for count, hidden in enumerate(out.hidden_states) if asks else [(self.layers, out.last_hidden_state)]:
            own.keep(count, hidden)
        if run is None and early_exit is None:
            self._layer_features = own.states
        return out.last_hidden_state

    def _decoder(self, early_exit: EarlyExit | None, run: LayerRun) -> Callable[..., Any]:
        """The whole decoder, or the layers that an early exit runs, with what happens between them."""
        layers = tuple(n for n in range(self.layers) if run.runs(n))
        if early_exit is not None and early_exit.reuse:
            first, following = early_exit.gap
            return hooked_layers(self._backbone.decoder, layers, {following: partial(run.skip, first)})
        if early_exit is None and self._collected and self.layers:
            taken = {n: partial(_taken, run, n) for n in self._collected if n < self.layers}
            return hooked_layers(self._backbone.decoder, layers, taken)
        if len(layers) == self.layers:
            return self._backbone.decoder
        if layers not in self._early_exits:
            self._early_exits[layers] = chosen_layers(self._backbone.decoder, layers)
        return self._early_exits[layers]

    def _cfg_factor(self, early_exit: EarlyExit | None) -> int:
        """2 if a call, or an early exit, also reads the unconditional rows, else 1."""
        return 1 + (self._guided and (early_exit is None or early_exit.guided))

    def _repeat(self, factor: int, slots: NDArray[np.int64]) -> Tensor:
        """Host slots int64 [B, ...] for the conditional rows, and for the unconditional ones if `factor` is 2."""
        return on_device(np.concatenate([slots] * factor), self.device)

    def _causal_mask(self, slots: Tensor, end: int, dtype: torch.dtype) -> Tensor:
        """The additive mask [R, 1, W, end] of tokens in `slots`, int64 [R, W]: causal, without padding."""
        key = torch.arange(end, device=self.device)
        own = slots[..., None]
        # Padding attends to itself: without any visible slot it would be NaN, and NaN would stay in the cache.
        return additive_mask((self._visible[: len(slots), None, :end] & (key <= own)) | (key == own), dtype)

    def _tree_mask(self, root: Tensor, sees: Tensor, end: int, dtype: torch.dtype) -> Tensor:
        """The additive mask [R, 1, W, end] of W entries of a tree; see `mmspec.decoding.attention_masks.tree_mask`."""
        mask = tree_mask(root, sees, end) & self._visible[: len(root), None, :end]
        return additive_mask(mask, dtype)

    def _logits(self, features: Tensor, last: int = 0, early_exit: EarlyExit | None = None) -> Logits:
        """Logits of the last `last` tokens of a window (0: of all), given its features [R, W, D]."""
        if early_exit is None:
            self._features = features
        else:
            self._exit_features = features
        return split_cfg(self.head(features[:, -last:]), self._cfg_factor(early_exit) == 2)


def _taken(run: LayerRun, count: int, hidden: Tensor) -> Tensor:
    """The input of a layer, which is collected."""
    run.keep(count, hidden)
    return hidden


def is_dispatched(module: nn.Module, device: torch.device) -> bool:
    """Whether a module may be sharded or offloaded: not all of its weights stay on the device."""
    hooked = any(hasattr(part, "_hf_hook") for part in module.modules())
    return hooked or any(p.device != device for p in module.parameters())


def with_cuda_graphs(target: CausalTarget) -> CausalTarget | CUDAGraphTarget:
    """The target with its windows captured in CUDA graphs, on a CUDA device and unless the model is dispatched.

    The graphs are kept with the model for later calls, see `mmspec.decoding.kept_graphs`.
    """
    if not use_cuda_graphs(target.device) or target.dispatched:
        return target
    backbone, module = target.backbone, target.module
    assert module is not None, "else it is dispatched"
    target.round_capacity(ROUND)
    return with_kept_graphs(target, module, [backbone.embed, backbone.head])


def slice_head(head: nn.Module, low: int, high: int) -> Callable[[Tensor], Tensor]:
    """A head restricted to the logits of ids `low` to `high - 1`.

    A plain linear layer computes only these; a quantised, sharded or hooked one computes all and is sliced afterwards.
    """
    # In this order: reading the weight of another kind of layer may fail or be slow.
    plain = type(head) is nn.Linear and type(head.weight.data) is Tensor
    if not plain or hasattr(head, "_hf_hook") or head._forward_hooks or head._forward_pre_hooks:
        return lambda hidden: head(hidden)[..., low:high]
    assert isinstance(head, nn.Linear)
    weight, bias = head.weight[low:high], None if head.bias is None else head.bias[low:high]
    return lambda hidden: F.linear(hidden, weight, bias)
