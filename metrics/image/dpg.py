"""DPG-Bench (Hu et al. 2024): the share of a dense prompt's statements that an image shows, by visual questions.

Each prompt has questions, answered yes or no by a network; a question counts only if those that it depends on were
answered yes.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import numpy as np

from mmspec.errors import ArgumentError, PromptError
from mmspec.files.documents import one_line
from mmspec.files.inputs import read_text
from mmspec.metrics.extractors.questions import VisualQuestions
from mmspec.metrics.features import Features
from mmspec.metrics.metric import MeanMetric, SampleBatch

COLUMNS = ("text", "proposition_id", "dependency", "question_natural_language")


@dataclass
class Questions:
    """The questions of a prompt, by number.

    Attributes:
        texts: The questions.
        parents: The questions that each depends on; 0 is none.
    """

    texts: dict[int, str] = field(default_factory=dict)
    parents: dict[int, list[int]] = field(default_factory=dict)

    def score(self, yes: Mapping[int, bool]) -> float:
        """The share of questions that count as shown, 0 to 1, from the answers."""
        shown = dict(yes)
        for number, parents in self.parents.items():
            if any(parent and not shown[parent] for parent in parents):
                shown[number] = False
        return sum(shown.values()) / len(shown)


def read_questions(path: Path) -> dict[str, Questions]:
    """Questions by prompt, from the benchmark's `dpg_bench.csv`, whose first question the original code leaves out.

    Raises:
        ArgumentError: If the file cannot be read, or is another one.
    """
    found: dict[str, Questions] = {}
    try:
        for n, row in enumerate(csv.DictReader(StringIO(read_text(path, "--dpg")))):
            if n == 0:
                continue
            text, number, parents, question = (row[name] for name in COLUMNS)
            questions = found.setdefault(_spaced(text), Questions())
            questions.texts[int(number)] = question
            questions.parents[int(number)] = [int(parent) for parent in parents.split(",")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, csv.Error) as error:
        raise ArgumentError(f"--dpg: '{path}' is not a readable dpg_bench.csv ({one_line(error)})") from None
    for text, questions in found.items():
        missing = {parent for parents in questions.parents.values() for parent in parents if parent}
        for number in sorted(missing - questions.texts.keys()):
            raise ArgumentError(f"--dpg: '{path}': {text[:60]!r} depends on question {number}, which it does not have")
    return found


@dataclass(frozen=True)
class Judge:
    """A network and the questions that it answers."""

    network: VisualQuestions
    questions: Mapping[str, Questions]
    name: str
    fingerprint: str


class DPGMetric(MeanMetric):
    """The mean score, from 0 to 100."""

    kind = "image"
    weights = ("vqa", "dpg")
    needs_prompts = True
    higher_is_better = True

    def load_extractor(self, weights: Mapping[str, str], device: str) -> Judge:
        """The network and the questions.

        Raises:
            ArgumentError: If one of them is not named, or the questions cannot be read.
            ModelError: If the network cannot be loaded.
        """
        questions = self._questions(weights)
        network = VisualQuestions(weights["vqa"], device)
        return Judge(network, questions, network.name, network.fingerprint)

    def check_prompts(self, prompts: Sequence[str], weights: Mapping[str, str]) -> None:
        known = self._questions(weights)
        for prompt in prompts:
            questions_of(prompt, known)

    def scores(self, samples: SampleBatch, extractor: Judge) -> Features:
        found = []
        for image, prompt in zip(samples.images, samples.prompts, strict=True):
            questions = questions_of(prompt, extractor.questions)
            answers = extractor.network.answer(image, list(questions.texts.values()))
            yes = {number: answer == "yes" for number, answer in zip(questions.texts, answers, strict=True)}
            found.append(100 * questions.score(yes))
        return np.array(found)

    def _questions(self, weights: Mapping[str, str]) -> Mapping[str, Questions]:
        if not weights.get("vqa") or not weights.get("dpg"):
            raise ArgumentError(
                f"metric {self.name!r} needs a network that answers questions, and the benchmark's dpg_bench.csv; name "
                "them with --vqa and --dpg"
            )
        return read_questions(Path(weights["dpg"]))


def questions_of(prompt: str, known: Mapping[str, Questions]) -> Questions:
    """The questions of a prompt.

    Raises:
        PromptError: If it has none.
    """
    if _spaced(prompt) not in known:
        raise PromptError(f"prompt={prompt[:120]!r} is not one of DPG-Bench's, by the text of the file of --dpg")
    return known[_spaced(prompt)]


def _spaced(text: str) -> str:
    """A text with single spaces, as prompts are read: some of the benchmark's hold line breaks."""
    return " ".join(text.split())


DPG = DPGMetric("dpg")
