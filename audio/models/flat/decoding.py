"""Flat speech language models: text and sound are ids of one vocabulary, one token at a time.

Llasa, Orpheus, Spark and many others are a Llama or a Qwen whose vocabulary was extended by codes; `mmspec.generate`
takes any of them. What tells one from another is a `Stream`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.errors import ArgumentError, ModelError, unknown_name
from mmspec.hf.plan import Plan, PlanRequest, logits_size, refuse_inputs, shared_vocabulary_plan


def vocab_size(model: Any) -> int:
    """Size of the vocabulary that logits are over."""
    return logits_size(model.lm_head)


def plan(model: Any, request: PlanRequest) -> Plan:
    """`prefix_allowed_tokens_fn` gives the layout, see `Stream`; without one, text and sound mix freely."""
    refuse_inputs(model, request)
    return shared_vocabulary_plan(model, model.model, model.get_input_embeddings(), model.lm_head, request)


@dataclass(frozen=True)
class Stream:
    """How sound is written as ids.

    Attributes:
        codes: Entries of a codebook.
        first: The id of entry 0.
        end: The id that ends a stream, or None.
        slots: Which codebook each token of a super-frame stands for, in order. The ids of slot i begin at
            `first + i * codes` where `offset`, else all slots share theirs.
        codebooks: `slots` as tokens per super-frame of each codebook, coarse to fine.

    Raises:
        ArgumentError: For a stream without slots, or one that skips a codebook.
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
        """The ids of a slot; a stream may end where a super-frame begins."""
        low = self.first + (slot * self.codes if self.offset else 0)
        ids = list(range(low, low + self.codes))
        return ids + [self.end] if slot == 0 and self.end is not None else ids

    def after(self, prompt: int) -> Spelling:
        """What `model.generate` takes as `prefix_allowed_tokens_fn`, for prompts of so many ids."""
        return Spelling(self, prompt)

    def read(self, ids: Tensor) -> list[Tensor]:
        """Codes of ids int64 [n] without the prompt: int64 [frames * tokens per super-frame] of each codebook.

        What follows the end, and a super-frame that is not whole, is left out.

        Raises:
            ModelError: For an id that its slot does not allow, as a model that is not held to its slots may give.
        """
        ids, count = self.until_end(ids), len(self.slots)
        codes = ids[: len(ids) // count * count].view(-1, count) - self.lowest().to(ids.device)
        if bool(((codes < 0) | (codes >= self.codes)).any()):
            raise ModelError(
                "ids that are not of their slot are no sound; hold the model to its slots (`Stream.after`)"
            )
        books: list[list[Tensor]] = [[] for _ in self.codebooks]
        for column, book in zip(codes.unbind(1), self.slots, strict=True):
            books[book].append(column)
        return [torch.stack(book, dim=1).flatten() for book in books]

    def write(self, books: Sequence[Tensor]) -> Tensor:
        """The ids int64 [n] of codes as `read` gives them; without an end."""
        parts = [list(book.view(-1, n).unbind(1)) for book, n in zip(books, self.codebooks, strict=True)]
        columns = [parts[book].pop(0) for book in self.slots]
        return (torch.stack(columns, dim=1) + self.lowest().to(columns[0].device)).flatten()

    def lowest(self) -> Tensor:
        """The id of entry 0 in each slot, int64 [slots]."""
        return self.first + torch.arange(len(self.slots)) * (self.codes if self.offset else 0)

    def until_end(self, ids: Tensor) -> Tensor:
        """Ids int64 [n] up to the end of the stream, without it."""
        if self.end is not None and len(stop := (ids == self.end).nonzero()):
            return ids[: int(stop[0])]
        return ids


class Spelling:
    """Which ids may come next, by position alone: sound in its slots, and an end between super-frames.

    Attributes:
        width: Tokens per super-frame, where there are several.
    """

    def __init__(self, stream: Stream, prompt: int) -> None:
        self._prompt = prompt
        self._allowed = [stream.allowed(slot) for slot in range(len(stream.slots))]
        self.width = len(stream.slots) if len(stream.slots) > 1 else None

    def __call__(self, row: int, ids: Tensor) -> list[int]:
        return self._allowed[(len(ids) - self._prompt) % len(self._allowed)]


# Those whose ids are published with fixed numbers.
STREAMS = {
    # X-codec2: 4^8 levels in one code, 50 a second.
    "llasa": Stream(codes=65536, first=128264, end=128261),
    # SNAC: 1, 2 and 4 codes of three codebooks per super-frame, 12 super-frames a second.
    "orpheus": Stream(codes=4096, first=128266, end=128258, slots=(0, 1, 2, 2, 1, 2, 2)),
}


def stream_named(name: str) -> Stream:
    """The stream of that name.

    Raises:
        UnknownNameError: When there is no stream of that name.
    """
    if name not in STREAMS:
        raise unknown_name("stream", name, STREAMS)
    return STREAMS[name]
