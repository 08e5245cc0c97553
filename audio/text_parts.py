"""The parts that a text is split into, as rows of an engine; later parts may continue the first or the latest one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mmspec.audio.adapter import (
    ContinuesLatest,
    PreparedText,
    SeparatesParts,
    SpeechAdapter,
    SupportsVoiceContinuation,
)
from mmspec.batching.request import PreparedRequest, RowPrompt
from mmspec.decoding.stats import Stats
from mmspec.sampling.params import SamplingParams

_SEED_STRIDE = 2**32  # between the seeds of one text's parts


def part_seed(seed: int, part: int) -> int:
    """The seed of a part of a text with this seed."""
    return seed + part * _SEED_STRIDE


@dataclass(frozen=True)
class PartPrompt:
    """The prompt of a row: a part of a text, in the format of the adapter that has read it."""

    adapter: SpeechAdapter
    part: Any


class TextParts:
    """The parts of a text, to be decoded.

    Args:
        adapter: The model.
        prepared: The text.
        sampling: Sampling parameters.
        seed: The seed of the text.

    Attributes:
        prepared: The text.
        prompts: The parts, those that have begun as they continue earlier ones.
    """

    def __init__(self, adapter: SpeechAdapter, prepared: PreparedText, sampling: SamplingParams, seed: int) -> None:
        self._adapter, self.prepared, self._sampling, self.seed = adapter, prepared, sampling, seed
        self.prompts = list(prepared.parts)

    def request(self, finish: Callable[[Sequence[Tensor], Stats], Any]) -> PreparedRequest:
        """The request of an engine; `finish` is its attribute of this name."""
        rows = [self._row(part, part_seed(self.seed, number)) for number, part in enumerate(self.prompts)]
        draws = isinstance(self._adapter, SupportsVoiceContinuation) and self._adapter.draws_voice
        continued = self._continued if draws else None
        chained = isinstance(self._adapter, ContinuesLatest)
        return PreparedRequest(rows, finish, self.seed, continued, self.prepared.notes, chained=chained)

    def _row(self, part: Any, seed: int) -> RowPrompt:
        kind = self._adapter.kind(part) if isinstance(self._adapter, SeparatesParts) else None
        prompt = PartPrompt(self._adapter, part)
        return RowPrompt(prompt, self._sampling, seed, (self._sampling, id(self._adapter), kind))

    def _continued(self, row: RowPrompt, earlier: RowPrompt, tokens: Tensor) -> RowPrompt:
        assert isinstance(self._adapter, SupportsVoiceContinuation)
        part = self._adapter.continue_voice(row.prompt.part, earlier.prompt.part, tokens)
        self.prompts[(row.seed - self.seed) // _SEED_STRIDE] = part
        return self._row(part, row.seed)
