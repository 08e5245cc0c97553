"""Flat speech language models: text and audio are ids of one vocabulary, generated one token at a time.

Llasa, Orpheus, Spark and many others are a Llama or a Qwen whose vocabulary was extended by codes; others are a Gemma,
a Phi, a GPT-2 or an LFM2. `mmspec.generate` supports all of them. A `StreamFormat` describes how such a model writes
codes as ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from mmspec.audio.models.flat.short_convolutions import ShortConvolutionLayers
from mmspec.errors import ArgumentError, ModelError
from mmspec.hf.plan import Plan, PlanRequest, logits_size, refuse_inputs, shared_vocabulary_plan


def vocab_size(model: Any) -> int:
    """Size of the vocabulary that logits are over."""
    return logits_size(model.lm_head)


def plan(model: Any, request: PlanRequest) -> Plan:
    """How a request is decoded.

    `prefix_allowed_tokens_fn` defines the layout, see `StreamFormat`; without it, all ids are allowed everywhere.
    """
    refuse_inputs(model, request, "position_ids")
    refuse_backbone(model, request.input_ids.shape[1] + request.length)
    return shared_vocabulary_plan(model, decoder_of(model), model.get_input_embeddings(), model.lm_head, request)


def decoder_of(model: Any) -> Any:
    """The part of a model that computes hidden states; layers with convolutions are called one by one."""
    decoder = model.base_model
    return ShortConvolutionLayers(decoder) if type(decoder).__name__ == "Lfm2Model" else decoder


def refuse_backbone(model: Any, positions: int) -> None:
    """Checks that a model attends to all of its positions, and that its logits are those of its head.

    Args:
        positions: Tokens of the prompt and new ones.

    Raises:
        ArgumentError: If some of its layers attend to the latest positions only, and to fewer than these.
        ModelError: If it limits its logits.
    """
    config = model.config
    window = getattr(config, "sliding_window", None)
    slides = "sliding_attention" in (getattr(config, "layer_types", None) or ()) or (
        window is not None and getattr(config, "use_sliding_window", True) and not hasattr(config, "layer_types")
    )
    if slides and window is not None and positions > window:
        raise ArgumentError(
            f"{type(model).__name__} attends to the latest {window} positions in some layers, and prompt and new "
            f"tokens are {positions}; that is supported up to {window}"
        )
    if getattr(config, "final_logit_softcapping", None):
        raise ModelError(f"{type(model).__name__} limits its logits (final_logit_softcapping), which is not supported")


@dataclass(frozen=True)
class StreamFormat:
    """How codes are written as ids: super-frames of one token per slot.

    Attributes:
        codes: Entries per codebook.
        first: The id of entry 0.
        end: The id that ends a stream, or None.
        slots: The codebook of each token of a super-frame, in order.
        offset: Whether each slot has its own ids, those of slot i beginning at `first + i * codes`; otherwise all slots
            share the same ids.
        codebooks: Tokens per super-frame of each codebook, coarse to fine; computed from `slots`.

    Raises:
        ArgumentError: If there are no slots, or a codebook is skipped.
    """

    codes: int
    first: int
    end: int | None
    slots: tuple[int, ...] = (0,)
    offset: bool = True
    codebooks: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        used = sorted(set(self.slots))
        if used != list(range(len(used))) or not used:
            raise ArgumentError(f"slots={self.slots} is not allowed; codebooks are numbered from 0 without a gap")
        object.__setattr__(self, "codebooks", tuple(self.slots.count(k) for k in used))

    def allowed(self, slot: int) -> list[int]:
        """The ids that a slot allows; a stream may end where a super-frame begins."""
        low = self.first + (slot * self.codes if self.offset else 0)
        ids = list(range(low, low + self.codes))
        return ids + [self.end] if slot == 0 and self.end is not None else ids

    def allowed_tokens_fn(self, prompt_length: int) -> SlotConstraint:
        """The `prefix_allowed_tokens_fn` of `model.generate` for prompts of `prompt_length` ids."""
        return SlotConstraint(self, prompt_length)

    def to_codes(self, ids: Tensor) -> list[Tensor]:
        """The codes of ids int64 [n] without the prompt: int64 [super-frames * tokens per super-frame] per codebook.

        Ids after the end and an incomplete super-frame are dropped.

        Raises:
            ModelError: For an id that its slot does not allow, which an unconstrained model may generate.
        """
        ids, count = self.until_end(ids), len(self.slots)
        codes = ids[: len(ids) // count * count].view(-1, count) - self.first_ids().to(ids.device)
        if bool(((codes < 0) | (codes >= self.codes)).any()):
            raise ModelError(
                "ids contains an id that its slot does not allow; constrain the model with `allowed_tokens_fn`"
            )
        books: list[list[Tensor]] = [[] for _ in self.codebooks]
        for column, book in zip(codes.unbind(1), self.slots, strict=True):
            books[book].append(column)
        return [torch.stack(book, dim=1).flatten() for book in books]

    def to_ids(self, books: Sequence[Tensor]) -> Tensor:
        """The ids int64 [n] of codes as `to_codes` returns them, without an end."""
        parts = [list(book.view(-1, n).unbind(1)) for book, n in zip(books, self.codebooks, strict=True)]
        columns = [parts[book].pop(0) for book in self.slots]
        return (torch.stack(columns, dim=1) + self.first_ids().to(columns[0].device)).flatten()

    def first_ids(self) -> Tensor:
        """The id of entry 0 in each slot, int64 [slots]."""
        return self.first + torch.arange(len(self.slots)) * (self.codes if self.offset else 0)

    def until_end(self, ids: Tensor) -> Tensor:
        """Ids int64 [n] before the end of the stream."""
        if self.end is not None and len(stop := (ids == self.end).nonzero()):
            return ids[: int(stop[0])]
        return ids


class FrameReader(Protocol):
    """Reads frames off a stream that has other tokens too.

    Attributes:
        codebooks: Codes per frame.
        codes: Entries of the largest codebook.
    """

    @property
    def codebooks(self) -> int: ...

    @property
    def codes(self) -> int: ...

    def frames(self, ids: Tensor) -> Tensor:
        """The frames int64 [K, F] of ids int64 [n]; more ids only append frames."""
        ...


@dataclass(frozen=True)
class MarkedCodes:
    """Codes among other tokens, which their ids tell: a frame is the next code of each codebook.

    Attributes:
        firsts: The id of entry 0 of each codebook.
        codes: Entries per codebook.
        ids: Ids per codebook; those after the entries are read as the last.
    """

    firsts: tuple[int, ...]
    codes: int
    ids: int

    @property
    def codebooks(self) -> int:
        """Codes per frame."""
        return len(self.firsts)

    def frames(self, ids: Tensor) -> Tensor:
        """The frames int64 [K, F] of ids int64 [n]; codes without those of the other codebooks are left out."""
        books = [ids[(ids >= first) & (ids < first + self.ids)] - first for first in self.firsts]
        count = min(len(book) for book in books)
        return torch.stack([book[:count] for book in books]).clamp(max=self.codes - 1)


class SlotConstraint:
    """The ids that may come next, a function of the position alone: codes in their slots, an end between super-frames.

    Args:
        stream: The format.
        prompt_length: Ids before the stream.

    Attributes:
        width: Tokens per super-frame; None if it is one.
    """

    def __init__(self, stream: StreamFormat, prompt_length: int) -> None:
        self._prompt_length = prompt_length
        self._allowed = [stream.allowed(slot) for slot in range(len(stream.slots))]
        self.width = len(stream.slots) if len(stream.slots) > 1 else None

    def __call__(self, row: int, ids: Tensor) -> list[int]:
        return self._allowed[(len(ids) - self._prompt_length) % len(self._allowed)]


# The formats of published model families.
STREAM_FORMATS = {
    # X-codec2: codes of 8 digits with 4 levels, 50 per second.
    "llasa": StreamFormat(codes=65536, first=128264, end=128261),
    # BiCodec: codes of the words, 50 per second; the 32 codes of the speaker are in the prompt.
    "spark": StreamFormat(codes=8192, first=155761, end=165157),
    # SNAC: 1, 2 and 4 codes of three codebooks per super-frame, 12 super-frames per second.
    "orpheus": StreamFormat(codes=4096, first=128266, end=128258, slots=(0, 1, 2, 2, 1, 2, 2)),
}
