"""The protocols of a target: windows, trees, features and early exits. Adapters wrap each model in a target.

`LayerRun` and `embed_with_prompts` are what targets with early exits and prompt tokens share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.errors import ArgumentError, ModelError
from mmspec.sampling.acceptance import Accept, FeatureRule
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.tree import Tree


class Target(Protocol):
    """A model with its prompts, for a batch of rows that advance independently.

    Every call gives the position at which each row's window starts, and thereby rolls the KV cache back to it. With
    guidance, the target adds the unconditional rows itself; they read the same tokens.

    What it holds per row it names in `ROWS`, and what must agree for rows to join in `SAME`; see
    `mmspec.decoding.rows.HoldsRows`.

    Attributes:
        vocab_size: V.
        device: Of tokens and logits.
    """

    vocab_size: int
    device: torch.device

    def prefill(self) -> Logits:
        """Reads the prompts and returns the logits of position 0, [B, 1, V]."""
        ...

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        """Reads a window and returns the logits of the position after each of its tokens, [B, W, V].

        Args:
            tokens: int64 [B, W].
            at: Host int64 [B]; `tokens[b, i]` has position `at[b] + i`. The last windows of a row may reach past the
                end of the sequence; logits there are ignored but must not be NaN.
        """
        ...


@runtime_checkable
class SingleSlotTarget(Target, Protocol):
    """A target whose logits cost a pass each, and that computes them for one token of a window alone."""

    def forward_slot(self, tokens: Tensor, at: NDArray[np.int64], slot: NDArray[np.int64]) -> Logits:
        """Reads a window as `forward` does and returns the logits after one token of each row, [B, 1, V].

        Args:
            tokens: int64 [B, W].
            at: Host int64 [B]; see `mmspec.decoding.target.Target.forward`.
            slot: Host int64 [B], from 0 to W - 1: the token of each row.
        """
        ...


@runtime_checkable
class FeatureTarget(Target, Protocol):
    """A target that returns its features, for drafters and rules that read them.

    Features are the hidden states after the final norm, the input of the LM head: [R, W, D]. R is B, or 2 B with
    guidance, the unconditional rows after the conditional ones.
    """

    def features(self) -> Tensor:
        """The features of the last call: one for each token of its window, entry of its tree, or slot of its prompt.

        After rows have been dropped they are those of the kept rows: a drafter may ask for them once rows have ended.
        After rows have joined there is at least one for each row, the latest one last.
        """
        ...

    def head(self, features: Tensor) -> Tensor:
        """Logits [R, W, V] of features [R, W, D]."""
        ...


@runtime_checkable
class LayerFeatureTarget(FeatureTarget, Protocol):
    """A target that also returns the hidden states of earlier layers, for drafters that fuse several layers.

    Attributes:
        layers: The number of all layers.
    """

    layers: int

    @property
    def fused_layers(self) -> tuple[int, ...]:
        """The layers that a new drafter fuses; () if it should read the features of the last one alone."""
        ...

    def collect_layers(self, layers: Sequence[int]) -> None:
        """Keeps the hidden states of some layers in later calls; called before the prefill.

        Args:
            layers: n is the output of the first n layers, before any final norm; 0 is the embeddings.
        """
        ...

    def layer_features(self) -> Tensor:
        """The kept hidden states of the last call, in the order of `collect_layers`, concatenated: [R, W, layers * D].

        Rows and entries are those of `features`.
        """
        ...


@runtime_checkable
class FrameFeatureTarget(Target, Protocol):
    """A target of a stream of frames that returns one feature per frame, for drafters that predict whole frames.

    The feature of a frame is the hidden state that its first token is sampled from.

    Attributes:
        frame_size: Tokens of a frame, K.
    """

    frame_size: int

    @property
    def forces_firsts(self) -> bool:
        """Whether first tokens of frames may force those of later frames; see `forced_firsts`."""
        ...

    def frame_features(self, frames: NDArray[np.int64]) -> Tensor:
        """The features [B, D] of one frame of each row, of which at least the first token has been sampled.

        Args:
            frames: Host int64 [B], the numbers of the frames.
        """
        ...

    def frame_logits(self, logits: Tensor, books: NDArray[np.int64]) -> Tensor:
        """A drafter's logits [B, W, V] as logits of drafts, with the sampling parameters of their places in a frame.

        Args:
            logits: [B, W, V].
            books: Host int64 [B, W], 0 to K - 1.
        """
        ...

    def forced_firsts(self, firsts: Tensor, counts: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.int64]:
        """The only first token that the next frame of each row may have, host int64 [B], -1 where it is free.

        Of targets with `forces_firsts`. Forced tokens at other places are a layout's constraint.

        Args:
            firsts: int64 [B, n], the first tokens of the frames from number `at` on: a committed one, then drafts.
            counts: Host int64 [B], how many of them there are; the next frame has number `at + counts`.
            at: Host int64 [B], the numbers of the frames that the last committed tokens belong to.
        """
        ...


class ReadsAhead(Protocol):
    """A target that can read a window whose positions only the device knows."""

    @property
    def reads_ahead(self) -> bool:
        """Whether it can do so now, unless the call fails."""
        ...

    def forward_ahead(self, tokens: Tensor, at: Numbers) -> Logits | None:
        """As `Target.forward`.

        Args:
            tokens: int64 [B, W], of the vocabulary even where the tokens before are not, as their distributions are
                invalid.
            at: [B], the positions of the first tokens. Those on the device count; the host's are at least those.

        Returns:
            The logits, or None if the host's numbers are needed; the target is then as before.
        """
        ...


def reads_ahead(target: object) -> bool:
    """Whether a target is a `ReadsAhead`, and can read ahead now."""
    return provides(target, "reads_ahead", "forward_ahead") and cast(ReadsAhead, target).reads_ahead


def provides(part: object, *names: str) -> bool:
    """Whether a part has what a protocol asks for; `isinstance` of a protocol would take longer than a launch."""
    return all(hasattr(type(part), name) for name in names)


def read_window(target: Target, tokens: Tensor, at: Numbers) -> Logits:
    """`Target.forward`; a target that reads ahead is given the positions that are on the device already."""
    found = None
    if at.there is not None and reads_ahead(target):
        found = cast(ReadsAhead, target).forward_ahead(tokens, at)
    return target.forward(tokens, at.host) if found is None else found


def spread_layers(count: int) -> tuple[int, ...]:
    """An early layer, the middle and the last of `count` layers; () if there are fewer than three."""
    return () if count < 3 else tuple(sorted({max(count // 4, 1), (count + 1) // 2, count}))


@runtime_checkable
class TreeTarget(Target, Protocol):
    """A target that reads trees with tree attention.

    Entry 0 of a tree is its root, the last committed token. The keys and values of the entries are kept in consecutive
    slots from the root's position on; `settle` moves those of the accepted path to the positions of its tokens.
    """

    def forward_tree(self, tokens: Tensor, at: NDArray[np.int64], tree: Tree, first: int = 0) -> Logits:
        """Reads entries `first` to `first + W - 1` of a tree and returns the logits after each of them, [B, W, V].

        An entry attends to the committed tokens up to the root, to its ancestors and to itself. Entries before `first`
        must have been read by earlier calls; a root that `forward` has read counts as read.

        Args:
            tokens: int64 [B, W].
            at: Host int64 [B], the root's position. Positions past the end are treated as in `forward`.
            tree: Contains at least the entries up to the last one read.
        """
        ...

    def settle(self, at: NDArray[np.int64], path: NDArray[np.int64]) -> None:
        """Keeps one path of the last tree: its i-th entry becomes the token at position `at + 1 + i`.

        Args:
            at: Host int64 [B], the root's position.
            path: Host int64 [B, D], entries by depth; the value i + 1 at index i leaves that position unchanged.
        """
        ...


@runtime_checkable
class PromptTarget(TreeTarget, Protocol):
    """A target that reads learned prompt tokens among the entries of a tree."""

    def read_prompts(self, embeddings: Tensor) -> None:
        """Sets the prompt tokens: id V + i in a tree stands for embedding i; called before the prefill.

        Args:
            embeddings: [m, D], with the width D of the tokens' embeddings.

        Raises:
            ModelError: If the width is another one.
        """
        ...


@dataclass(frozen=True)
class EarlyExit:
    """The part of a target that an early exit runs.

    Attributes:
        layers: The number of layers, from the first one; all of them for a short cache alone.
        guided: Whether the unconditional rows run as well; ignored if the target has none.
        recent: Tokens that each token attends to besides the prompt, itself included; 0 is all. Only some
            targets support it, see `reads_short_cache`.
        skip: Layers that do not run, from 0. Only some targets support it, see `skips_layers`.
        reuse: Whether the window of the last full call is read again, with some other tokens, and the layers that are
            skipped add to each slot what they added there in that call, instead of nothing. They must follow each
            other, `gap` must have been collected (`LayerFeatureTarget.collect_layers`), and the unconditional rows run
            as well. Only some targets support it, see `reuses_updates`.
        change: With `reuse`, the states after the skipped layers, of those before them now and in that call, and of
            those after them there, each [R, W, D]; None adds the difference of the first two to the last.
    """

    layers: int
    guided: bool
    recent: int = 0
    skip: tuple[int, ...] = ()
    reuse: bool = False
    change: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None

    def runs(self, layer: int) -> bool:
        """Whether a layer runs."""
        return layer < self.layers and layer not in self.skip

    def after_gap(self, new: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """The states after the skipped layers, see `change`."""
        if self.change is not None:
            return self.change(new, before, after)
        # In this order, slots where nothing has changed keep their states to the last bit.
        return after + (new - before)

    @property
    def gap(self) -> tuple[int, int]:
        """The numbers of layers before the skipped ones and up to the last of them, for `collect_layers`."""
        return self.skip[0], self.skip[-1] + 1


@runtime_checkable
class RereadsWindows(LayerFeatureTarget, Protocol):
    """A target that reads its last window again with gradients, to train what replaces its inner layers."""

    def reread(self, tokens: Tensor, at: NDArray[np.int64], states: Tensor, early_exit: EarlyExit) -> Logits:
        """As a call of the early exit, with gradients; the KV cache keeps what it has.

        Args:
            tokens: int64 [B, W].
            at: Host int64 [B], the position of each row's first token.
            states: [R, W, 2 * D], takes the place of `layer_features()`.
            early_exit: With `reuse`.
        """
        ...


@runtime_checkable
class SupportsEarlyExit(Target, Protocol):
    """A target whose first layers can run alone.

    Attributes:
        layers: The number of all layers.
    """

    layers: int

    def forward(self, tokens: Tensor, at: NDArray[np.int64], early_exit: EarlyExit | None = None) -> Logits:
        """With `early_exit`, only that part runs.

        Early layers write their keys and values to the slots that a full call uses, and do not touch those of later
        layers. The next full call therefore starts no later than the first token that only an early exit has read.
        """
        ...


@runtime_checkable
class ExitFeatureTarget(SupportsEarlyExit, FeatureTarget, Protocol):
    """A target that returns the features of its early exits, for adapters that continue them."""

    def exit_features(self) -> Tensor:
        """The hidden states of the last early exit after the final norm, [R, W, D]; R is B if it was not guided."""
        ...


@runtime_checkable
class PaddedTarget(Target, Protocol):
    """A target whose rows may have prompts of different lengths, which it pads at their beginning."""

    def prompt_padding(self) -> NDArray[np.int64]:
        """The slots of padding before the prompt of each row, host int64 [R]; called right after the prefill."""
        ...


def prompt_padding(target: Target, rows: int) -> NDArray[np.int64]:
    """The slots of padding before the prompts of `rows` rows, the unconditional ones included, host int64 [rows]."""
    return target.prompt_padding() if isinstance(target, PaddedTarget) else np.zeros(rows, dtype=np.int64)


def reads_short_cache(target: object) -> bool:
    """Whether a target reads a part of its KV cache under `EarlyExit.recent`; it has `short_cache = True` then."""
    return bool(getattr(target, "short_cache", False))


def skips_layers(target: object) -> bool:
    """Whether a target leaves out the layers of `EarlyExit.skip`; it has `can_skip_layers = True` then."""
    return bool(getattr(target, "can_skip_layers", False))


def reuses_updates(target: object) -> bool:
    """Whether a target supports `EarlyExit.reuse`; it has `can_reuse_updates = True` then."""
    return bool(getattr(target, "can_reuse_updates", False))


@runtime_checkable
class SupportsTreeEarlyExit(SupportsEarlyExit, TreeTarget, Protocol):
    """A target whose first layers can read trees alone."""

    def forward_tree(
        self, tokens: Tensor, at: NDArray[np.int64], tree: Tree, first: int = 0, early_exit: EarlyExit | None = None
    ) -> Logits:
        """With `early_exit`, only that part runs."""
        ...


def bind_features(rule: Accept, target: object, batch_size: int) -> Accept:
    """Binds the features of the target's last call to a rule that reads features; returns other rules unchanged.

    Args:
        batch_size: B, the number of conditional rows.

    Raises:
        ArgumentError: If the rule reads features and the target has none.
    """
    if not isinstance(rule, FeatureRule):
        return rule
    if not isinstance(target, FeatureTarget):
        raise ArgumentError(f"the acceptance rule reads features, which {type(target).__name__} does not provide")
    return replace(rule, features=target.features()[:batch_size])


def cache_bytes(target: object) -> int:
    """Bytes of a target's KV cache; 0 if the target does not tell."""
    return int(getattr(target, "cache_bytes", 0))


class LayerRun:
    """The layers of one call of a target.

    Args:
        early_exit: The part that runs; None for all layers.
        collected: The states that a call of all layers keeps, see `LayerFeatureTarget.collect_layers`.
        states: [R, W, layers * D], where they are put, or new memory if None; of an early exit with `reuse`, those of
            the last full call, which are read.

    Attributes:
        states: The same, after the call.
    """

    def __init__(
        self, early_exit: EarlyExit | None, collected: Sequence[int] = (), states: Tensor | None = None
    ) -> None:
        self.states = states
        self._early_exit = early_exit
        self._collected = tuple(collected) if early_exit is None else ()

    def runs(self, layer: int) -> bool:
        """Whether a layer runs, by its index."""
        return self._early_exit is None or self._early_exit.runs(layer)

    def skip(self, layer: int, h: Tensor) -> Tensor:
        """The states [R, W, D] after a layer that does not run, of those before it."""
        if self._early_exit is None or not self._early_exit.reuse or layer != self._early_exit.skip[0]:
            return h
        assert self.states is not None, "a full call comes first"
        before, after = self.states.chunk(2, dim=-1)
        return self._early_exit.after_gap(h, before.to(h), after.to(h))

    def keep(self, count: int, h: Tensor) -> None:
        """Copies the states after the first `count` layers, [R, W, D], if they are collected."""
        for place, wanted in enumerate(self._collected):
            if wanted == count:
                if self.states is None:
                    self.states = h.new_empty(*h.shape[:-1], len(self._collected) * h.shape[-1])
                self.states.unflatten(-1, (len(self._collected), -1))[..., place, :].copy_(h)


def check_prompts(prompts: Tensor, width: int) -> Tensor:
    """Returns the embeddings of prompt tokens, [m, D].

    Raises:
        ModelError: If D is not the width of the model's embeddings.
    """
    if prompts.shape[1] != width:
        raise ModelError(
            f"drafter has prompt tokens of width {prompts.shape[1]}, the model embeddings of {width}; they must match"
        )
    return prompts


def embed_with_prompts(
    embed: Callable[[Tensor], Tensor], prompts: Tensor | None, tokens: Tensor, vocab_size: int
) -> Tensor:
    """Embeddings [R, W, D] of ids int64 [R, W], where an id V + i is prompt token i.

    Args:
        embed: Embeds tokens.
        prompts: The embeddings of the prompt tokens, [m, D]; None if there are none.
        tokens: The ids.
        vocab_size: V.
    """
    if prompts is None:
        return embed(tokens)
    embeds, index = embed(tokens.clamp(max=vocab_size - 1)), (tokens - vocab_size).clamp(min=0)
    return torch.where((tokens >= vocab_size)[..., None], prompts.to(embeds)[index], embeds)
