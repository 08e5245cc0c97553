"""The interface between the speech pipeline and a speech or music model."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from mmspec.audio.codec import Codec
from mmspec.audio.reference_audio import ReferenceAudio, ReferenceCodes
from mmspec.audio.text import ends_sentence
from mmspec.audio.text_cuts import are_joined, finds_words
from mmspec.batching.request import PreparedBatch
from mmspec.decoding.stats import RowStats
from mmspec.environment.importing import install_extra
from mmspec.heads.head import Head
from mmspec.heads.merged_vocabulary import MergedVocabulary
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams


@dataclass(frozen=True)
class PreparedText:
    """A text, split into the parts that a model decodes.

    Attributes:
        parts: The parts, such as sentences, decoded separately and played in this order, in the adapter's own format.
        notes: Remarks for the caller.
        texts: The text of each part, which tells where a pause belongs and what was truncated; may be empty.
        adapter: The adapter that read it, once a pipeline has it; it follows reference audio, if the pipeline does.
    """

    parts: Sequence[Any]
    notes: list[str] = field(default_factory=list)
    texts: Sequence[str] = ()
    adapter: SpeechAdapter | None = None

    def pause_follows(self, part: int) -> bool:
        """Whether a pause may follow a part: another part follows, and this one ends a sentence as far as known."""
        return part + 1 < len(self.parts) and (not self.texts or ends_sentence(self.texts[part]))

    def with_note_on_words(self, text: str) -> PreparedText:
        """The same with a remark, if the text was cut where a word may go on, as its script has no blanks."""
        if finds_words() or not any(are_joined(*pair, text) for pair in pairwise(self.texts)):
            return self
        note = f"the text has too few blanks to be cut between words; to find words, {install_extra('words')}"
        return replace(self, notes=[*self.notes, note])

    def truncation_note(self, part: int, tokens: int) -> str:
        """The remark that a part ended after `tokens` tokens, its limit."""
        return f"truncated: {self._named(part)} reached its limit of {tokens} tokens before its end"

    def silence_note(self, part: int) -> str:
        """The remark that a part has no audio."""
        return f"no sound: {self._named(part)} ended before its first frame"

    def _named(self, part: int) -> str:
        shown = f" ({_beginning(self.texts[part])!r})" if self.texts else ""
        return f"part {part + 1} of {len(self.parts)}{shown}"

    def remarks(self, adapter: SpeechAdapter, parts: Sequence[Tensor], rows: Sequence[RowStats]) -> list[str]:
        """The remarks on what was decoded.

        Args:
            adapter: The model.
            parts: The tokens of each part.
            rows: The statistics of each part.
        """
        notes = list[str]()
        for i, (tokens, row) in enumerate(zip(parts, rows, strict=True)):
            notes += self.notes_on(adapter, i, tokens)
            if row.truncated:
                notes.append(self.truncation_note(i, row.tokens))
        return notes

    def notes_on(self, adapter: SpeechAdapter, part: int, tokens: Tensor) -> list[str]:
        """The remarks on the tokens of a part: that they have no audio, and the words of an answer."""
        silent = [] if adapter.codes(tokens).shape[-1] else [self.silence_note(part)]
        return [*silent, f"answer: {adapter.answer(tokens)}"] if isinstance(adapter, AnswersInWords) else silent


def _beginning(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


class SpeechAdapter(Protocol):
    """The interface between `mmspec.audio.pipeline.SpeechPipeline` and a speech or music model.

    An adapter may also have two bools: `takes_min_p` (False), whether its rows are sampled with the min-p and typical-p
    of a call, which are refused otherwise; `answers` (False), whether `read` runs a model that reads or answers the
    text, so that a server must not call it where requests wait.

    Attributes:
        codec: Decodes the model's codes into audio.
        sampling: Default sampling parameters of a call.
        recipe: Default recipe of a call.
        guided: Whether the model supports guidance.
        voices: Names of the voices, the default first; may be empty.
    """

    codec: Codec
    sampling: SamplingParams
    recipe: str
    guided: bool
    voices: Sequence[str]

    def read(self, text: str, voice: str | None) -> PreparedText:
        """Prepares a text.

        Raises:
            PromptError: For a text that the model cannot speak.
        """
        ...

    def prepare_rows(self, parts: Sequence[Any], recipe: Recipe, samplings: Sequence[SamplingParams]) -> PreparedBatch:
        """Prepares a batch with one row per part, of one kind, and sampling parameters for each."""
        ...

    def codes(self, tokens: Tensor) -> Tensor:
        """The frames int64 [K, F] of a row's tokens so far; more tokens only append frames."""
        ...


@runtime_checkable
class SupportsHeads(SpeechAdapter, Protocol):
    """An adapter of a model that draft heads can be trained for; its rows have them.

    Attributes:
        heads: Draft heads by kind.
    """

    heads: dict[str, Head]


@runtime_checkable
class SupportsFrameHeads(SupportsHeads, Protocol):
    """An adapter of a model whose frames have a depth decoder: its heads predict whole frames.

    Attributes:
        ahead: Frames in a window; 0 for those that the recipe needs.
    """

    ahead: int


@runtime_checkable
class MergesVocabularies(SupportsHeads, Protocol):
    """An adapter of a model whose published draft heads number its codes after the tokens of its texts."""

    def embedding(self) -> Tensor:
        """The embedding [V, D] of the codes."""
        ...

    def merged_vocabulary(self) -> MergedVocabulary | None:
        """How they number them; None if they do not."""
        ...


@runtime_checkable
class SupportsDuration(SpeechAdapter, Protocol):
    """An adapter of a model that generates audio of a given duration."""

    def with_duration(self, seconds: float) -> SupportsDuration:
        """The same adapter for audio of `seconds` seconds.

        Raises:
            ArgumentError: For a duration that the model cannot generate.
        """
        ...


@runtime_checkable
class SupportsReferenceAudio(SpeechAdapter, Protocol):
    """An adapter of a model that follows reference audio: its melody, or its voice."""

    def with_reference_audio(self, reference: ReferenceAudio) -> SupportsReferenceAudio:
        """The same adapter, following `reference`.

        Raises:
            ArgumentError: For reference audio that the model cannot follow.
        """
        ...


@runtime_checkable
class AnswersInWords(SpeechAdapter, Protocol):
    """An adapter of a model that makes the words of its answer along with the audio."""

    def answer(self, tokens: Tensor) -> str:
        """The words in a row's tokens."""
        ...


@runtime_checkable
class SupportsVoiceContinuation(SpeechAdapter, Protocol):
    """An adapter of a model that speaks a part with the voice of another one that has been decoded.

    Attributes:
        draws_voice: Whether the model draws a new voice for every part that continues none. The later parts of a text
            then continue its first part.
    """

    draws_voice: bool

    def continue_voice(self, part: Any, first: Any, tokens: Tensor) -> Any:
        """The part `part`, to be spoken with the voice of the part `first`, which was decoded to `tokens`."""
        ...


@runtime_checkable
class ContinuesLatest(SupportsVoiceContinuation, Protocol):
    """An adapter of a model whose parts continue everything before them: the part `first` of `continue_voice` is the
    one just before, as it was continued itself.

    Attributes:
        continues_latest: True.
    """

    continues_latest: bool


@runtime_checkable
class ContinuesParts(SpeechAdapter, Protocol):
    """An adapter of a model that clones a voice from codes and their text: a part can continue other parts.

    Attributes:
        continues_parts: Whether the model can.
        draws_voice: See `SupportsVoiceContinuation`.
    """

    @property
    def continues_parts(self) -> bool: ...

    @property
    def draws_voice(self) -> bool: ...

    def continue_from(self, part: Any, context: Sequence[ReferenceCodes]) -> Any | None:
        """The part `part`, as it was read, after its own reference audio and the parts `context`, in this order.

        Args:
            context: The text and the codes int64 [F, K] of parts that were decoded, at least one.

        Returns:
            The part, or None if that does not fit into the positions of the model.
        """
        ...


def with_voice_of(adapter: ContinuesParts, part: Any, text: str, tokens: Tensor) -> Any:
    """The part `part` after another one of this text, which was decoded to `tokens`; as it is if that does not fit."""
    codes = adapter.codes(tokens).T
    return (adapter.continue_from(part, [ReferenceCodes(text, codes)]) if len(codes) else None) or part


@runtime_checkable
class SeparatesParts(SpeechAdapter, Protocol):
    """An adapter of a model whose parts are not all prepared together."""

    def kind(self, part: Any) -> Hashable:
        """Parts of different kinds are not prepared together."""
        ...


@runtime_checkable
class DecodesParts(SpeechAdapter, Protocol):
    """An adapter of a model whose codes may become audio together with the prompt of their part."""

    def part_codec(self, part: Any) -> Codec:
        """The codec of a part; `codec` itself if the prompt does not matter."""
        ...
