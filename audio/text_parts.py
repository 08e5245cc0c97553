"""The parts that a text is split into, as rows of an engine; later parts may continue the first or the latest one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mmspec.audio.adapter import (
    ContinuesLatest,
    ContinuesParts,
    DecodesParts,
    PreparedText,
    SeparatesParts,
    SpeechAdapter,
    SupportsVoiceContinuation,
)
from mmspec.audio.codec import Codec
from mmspec.audio.codecs.after_reference import AfterReference
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.batching.request import PreparedRequest, RowPrompt
from mmspec.decoding.stats import Stats
from mmspec.errors import ArgumentError
from mmspec.sampling.params import SamplingParams

_SEED_STRIDE = 2**32  # between the seeds of one text's parts
_SECONDS_BEFORE = 4  # of a part that the codec decodes again before the next one


def part_seed(seed: int, part: int) -> int:
    """The seed of a part of a text with this seed."""
    return seed + part * _SEED_STRIDE


@dataclass(frozen=True)
class PartPrompt:
    """The prompt of a row: a part of a text, in the format of the adapter that has read it.

    Attributes:
        before: The frames int64 [K, F] that the audio of the part continues, which are not part of it; or None.
    """

    adapter: SpeechAdapter
    part: Any
    before: Tensor | None = None

    def codec(self) -> Codec:
        """The codec of the part."""
        adapter = self.adapter
        own = adapter.part_codec(self.part) if isinstance(adapter, DecodesParts) else adapter.codec
        return own if self.before is None else AfterReference(own, self.before)


class TextParts:
    """The parts of a text, to be decoded.

    Args:
        adapter: The model.
        prepared: The text.
        sampling: Sampling parameters.
        seed: The seed of the text.
        conditioned: Whether each part continues the codes and the text of the one before it. Before these it has its
            reference audio or, if the model draws the voice, the first part.

    Attributes:
        prepared: The text.
        prompts: The parts, those that have begun as they continue earlier ones.
        notes: Remarks for the caller.

    Raises:
        ArgumentError: If the model cannot continue its parts.
    """

    def __init__(
        self,
        adapter: SpeechAdapter,
        prepared: PreparedText,
        sampling: SamplingParams,
        seed: int,
        conditioned: bool = False,
    ) -> None:
        self._adapter, self.prepared, self._sampling, self.seed = adapter, prepared, sampling, seed
        self.prompts = [PartPrompt(adapter, part) for part in prepared.parts]
        self.notes = list(prepared.notes)
        self._chained = isinstance(adapter, ContinuesLatest)
        self._conditioned = conditioned and not self._chained
        self._spoken: list[ReferenceCodes] = []  # the first and the latest part, which later ones may continue
        if self._conditioned and not (isinstance(adapter, ContinuesParts) and adapter.continues_parts):
            raise ArgumentError(
                "condition_on_previous_chunks=True is not possible: this model does not clone from codes and their text"
            )

    def request(self, finish: Callable[[Sequence[Tensor], Stats], Any]) -> PreparedRequest:
        """The request of an engine; `finish` is its attribute of this name."""
        rows = [self._row(number) for number in range(len(self.prompts))]
        draws = isinstance(self._adapter, SupportsVoiceContinuation) and self._adapter.draws_voice
        continued = self._continued if draws or self._conditioned else None
        chained = self._chained or self._conditioned
        return PreparedRequest(rows, finish, self.seed, continued, self.prepared.notes, chained=chained)

    def _row(self, number: int) -> RowPrompt:
        prompt = self.prompts[number]
        kind = self._adapter.kind(prompt.part) if isinstance(self._adapter, SeparatesParts) else None
        return RowPrompt(
            prompt, self._sampling, part_seed(self.seed, number), (self._sampling, id(self._adapter), kind)
        )

    def _continued(self, row: RowPrompt, earlier: RowPrompt, tokens: Tensor, truncated: bool) -> RowPrompt:
        number = (row.seed - self.seed) // _SEED_STRIDE
        if self._conditioned:
            self.prompts[number] = self._conditioned_prompt(number, tokens, truncated)
        else:
            assert isinstance(self._adapter, SupportsVoiceContinuation)
            part = self._adapter.continue_voice(row.prompt.part, earlier.prompt.part, tokens)
            self.prompts[number] = PartPrompt(self._adapter, part)
        return self._row(number)

    def _conditioned_prompt(self, number: int, tokens: Tensor, truncated: bool) -> PartPrompt:
        """The prompt of a part that continues the one before it, which was decoded to `tokens`."""
        adapter, part = self._adapter, self.prompts[number].part
        assert isinstance(adapter, ContinuesParts)
        codes, codec = adapter.codes(tokens), adapter.codec
        own = [ReferenceCodes(self.prepared.texts[number - 1], codes.T)] if codes.shape[-1] else []
        if own and not truncated:  # what was cut is not the audio of its text
            self._spoken = [*self._spoken[:1], *own]
        latest = self._spoken[-1:] or (own if adapter.draws_voice else [])
        for context in _contexts(self._spoken[:1], latest) if adapter.draws_voice else [latest]:
            after = adapter.continue_from(part, context) if context else None
            if after is not None:
                part = after
                break
        if latest and (after is None or context[-1] is not latest[0]):
            self.notes.append(
                f"part {number + 1} of {len(self.prompts)} does not continue the one before it: the model has too few "
                "positions for both"
            )
        frames = -(-_SECONDS_BEFORE * codec.sampling_rate // codec.hop)
        return PartPrompt(adapter, part, codes[:, -frames:] if codes.shape[-1] else None)


def _contexts(first: list[ReferenceCodes], latest: list[ReferenceCodes]) -> list[list[ReferenceCodes]]:
    """What a part may continue if the model draws the voice, the best first."""
    both = [*first, *latest] if first and first[0] is not latest[0] else latest
    return [both, latest, first]
