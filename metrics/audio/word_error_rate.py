"""Word and character error rate of the transcripts of a speech recognizer.

Both texts are normalized before they are compared, see `mmspec.metrics.audio.text_normalizers`.
"""

from __future__ import annotations

import re
import unicodedata
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from mmspec.errors import ArgumentError, PromptError, unknown_name
from mmspec.metrics.audio.text_normalizers import basic, english
from mmspec.metrics.estimate import Estimate
from mmspec.metrics.extractors.audio import SpeechRecognizer
from mmspec.metrics.extractors.registry import SPEECH_RECOGNIZERS
from mmspec.metrics.metric import Groups, Metric, Rows, SampleBatch
from mmspec.metrics.shares import ratio_of

Normalizer = Literal["english", "basic", "plain"]
"""How texts are written: by `mmspec.metrics.audio.text_normalizers`, or by `normalize`."""


def word_error_rate(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Word edits per reference word, over all texts together; above 1 when much is inserted.

    Texts are compared as they are, split at blanks: see `normalize` for what should not count.

    Args:
        hypotheses: The transcripts.
        references: The texts that were to be spoken, in the same order.

    Raises:
        ArgumentError: If the lists differ in length, or the references hold no word at all.
    """
    return _rate([text.split() for text in hypotheses], [text.split() for text in references], "words")


def character_error_rate(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Character edits per reference character, blanks included; the arguments are those of `word_error_rate`.

    Raises:
        ArgumentError: If the lists differ in length, or the references contain no character at all.
    """
    return _rate(hypotheses, references, "characters")


def normalize(text: str) -> str:
    """Lower case, without punctuation, one blank between words; apostrophes inside words stay."""
    return " ".join(re.findall(r"\w+(?:'\w+)*", text.lower()))


def edits(hypothesis: Sequence[str], reference: Sequence[str]) -> int:
    """Fewest insertions, deletions and substitutions that turn one sequence into the other (Levenshtein)."""
    row = np.arange(len(hypothesis) + 1)
    for i, item in enumerate(reference, 1):
        kept = row[:-1] + np.array([other != item for other in hypothesis], dtype=np.int64)
        below = np.concatenate([[i], np.minimum(kept, row[1:] + 1)])
        # An insertion comes from the left neighbor of the same row: a running minimum once the slope is taken out.
        row = np.minimum.accumulate(below - np.arange(len(below))) + np.arange(len(below))
    return int(row[-1])


def _rate(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]], unit: str) -> float:
    if len(hypotheses) != len(references):
        raise ArgumentError(
            f"hypotheses has {len(hypotheses)} texts, references has {len(references)}; there must be one for each"
        )
    total = sum(map(len, references))
    if total == 0:
        raise ArgumentError(f"references holds no {unit}; an error rate needs at least one")
    return sum(edits(a, b) for a, b in zip(hypotheses, references, strict=True)) / total


class ErrorRate(Metric):
    """Edits per unit of the normalized prompts, over all samples together, as transcribed by a speech recognizer.

    Args:
        name: The metric's name.
        recognizer: The recognizer's name.
        normalizer: How both texts are written before they are compared; results name it. None is `english` for Whisper,
            and `plain` for the embedded recognizer, whose transcripts are words.

    Raises:
        UnknownNameError: If no speech recognizer has that name.
    """

    kind = "audio"
    needs_prompts = True
    higher_is_better = False
    is_share = True

    def __init__(self, name: str, recognizer: str, normalizer: Normalizer | None = None) -> None:
        super().__init__(name)
        if recognizer not in SPEECH_RECOGNIZERS:
            raise unknown_name("extractor", recognizer, SPEECH_RECOGNIZERS)
        self.extractor = recognizer
        self.normalizer: Normalizer = normalizer or ("plain" if recognizer == "spoken" else "english")
        self.variant = "" if self.normalizer == "plain" else f"{self.normalizer} normalizer"

    @abstractmethod
    def split(self, text: str) -> Sequence[str]:
        """The units of a text that edits count."""

    def check_combination(self, metrics: Sequence[Metric]) -> None:
        recognizers = {metric.extractor for metric in metrics if isinstance(metric, ErrorRate)}
        if len(recognizers) > 1:
            raise ArgumentError(
                f"error rates by {' and '.join(sorted(recognizers))} cannot be combined; name one of them"
            )

    def check_prompts(self, prompts: Sequence[str], weights: Mapping[str, str]) -> None:
        for prompt in prompts if self.normalizer == "english" else ():
            letters = [letter for letter in prompt if letter.isalpha()]
            if sum("LATIN" in unicodedata.name(letter, "") for letter in letters) * 2 < len(letters):
                raise PromptError(
                    f"prompt={prompt[:120]!r} is not in Latin letters, and metric {self.name!r} normalizes English; "
                    "use wer-basic or cer-basic"
                )

    def extract(self, samples: SampleBatch, extractor: SpeechRecognizer) -> Rows:
        """Edits and units of the prompt, [2] per sample."""
        rows = []
        normalizer = self._normalizer(extractor)
        for transcript, prompt in zip(samples.transcripts(extractor), samples.prompts, strict=True):
            reference = self.split(normalizer(extractor.expected(prompt)))
            rows.append(np.array([edits(self.split(normalizer(transcript)), reference), len(reference)], np.float64))
        return rows

    def _normalizer(self, extractor: SpeechRecognizer) -> Callable[[str], str]:
        if self.normalizer == "english":
            return english(getattr(extractor, "spellings", {}))
        return basic() if self.normalizer == "basic" else normalize

    def measure(self, rows: Rows, reference: None, groups: Groups = None) -> Estimate:
        wrong, total = np.stack(rows).T
        return ratio_of(wrong, total, groups)

    def sample_scores(self, rows: Rows) -> Sequence[float]:
        return [float(wrong / max(total, 1)) for wrong, total in rows]


class WordErrorRate(ErrorRate):
    """Word error rate, `wer@EXTRACTOR`.

    Args:
        recognizer: The recognizer's name.
        name: None is `wer@` and the recognizer's name.
    """

    def __init__(self, recognizer: str, name: str | None = None, normalizer: Normalizer | None = None) -> None:
        super().__init__(name or f"wer@{recognizer}", recognizer, normalizer)

    def split(self, text: str) -> Sequence[str]:
        return text.split()


class CharacterErrorRate(ErrorRate):
    """Character error rate, `cer@EXTRACTOR`.

    Args:
        recognizer: The recognizer's name.
        name: None is `cer@` and the recognizer's name.
    """

    def __init__(self, recognizer: str, name: str | None = None, normalizer: Normalizer | None = None) -> None:
        super().__init__(name or f"cer@{recognizer}", recognizer, normalizer)

    def split(self, text: str) -> Sequence[str]:
        return text


WER = WordErrorRate("whisper", "wer")
CER = CharacterErrorRate("whisper", "cer")
WER_BASIC = WordErrorRate("whisper", "wer-basic", "basic")
CER_BASIC = CharacterErrorRate("whisper", "cer-basic", "basic")
