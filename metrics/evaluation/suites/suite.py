"""Suites and the published settings of models, from the YAML files beside this module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter

from mmspec.errors import unknown_name
from mmspec.files.documents import read_yaml
from mmspec.metrics.metric import Kind

_DATA = Path(__file__).with_name("data")
T = TypeVar("T")


@dataclass(frozen=True)
class PromptFile:
    """Where the prompts of a suite stand in its file.

    Attributes:
        column: The name, or for "lst" the number, of the field with the prompt; "" where the format needs none.
        count: How many prompts the benchmark has; None if papers differ.
    """

    format: Literal["tsv", "csv", "jsonl", "coco", "folder", "classes", "lst", "normalized"]
    count: int | None
    column: str = ""


@dataclass(frozen=True)
class Suite:
    """A benchmark.

    Attributes:
        title: Its name and authors.
        kind: What models generate.
        prompts: Where the prompts stand.
        where: Where the file of prompts is published.
        samples_per_prompt: As published, or as the file says it was chosen.
        metrics: Those of `mmspec.metrics.registry` that papers print.
        sources: Where settings were found, and how surely.
        optional: Further metrics that papers print, which need weights of their own.
        reference: What distances are measured to; "" if none is needed.
        unknown: What is not known, or not measured by mmspec.
        notes: What to know when reading the numbers.
    """

    title: str
    kind: Kind
    prompts: PromptFile
    where: str
    samples_per_prompt: int
    metrics: list[str]
    sources: list[str]
    optional: list[str] = field(default_factory=list)
    reference: str = ""
    unknown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ModelSize:
    """What predicts the cost of a model.

    Attributes:
        parameters: Of the autoregressive model.
        layers: Its decoder layers.
        kv_heads: Heads of keys and values.
        head_dim: Their width.
        rows: Rows of the model per sample: 2 with guidance.
        tokens: Target calls of plain decoding per sample.
        unit: What a sample is.
    """

    parameters: float
    layers: int
    kv_heads: int
    head_dim: int
    rows: int
    tokens: int
    unit: str


@dataclass(frozen=True)
class PaperSettings:
    """The settings under which papers evaluate a model.

    Attributes:
        title: The model.
        match: A regular expression that finds it in the name that the user gives, in lower case.
        settings: Sampling parameters, by the names of the flags.
        size: What predicts its cost.
        sources: Where the settings were found, and how surely.
        published: Speeds that were published.
        unknown: What is not known.
    """

    title: str
    match: str
    settings: dict[str, float]
    size: ModelSize
    sources: list[str]
    published: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def suite_names() -> list[str]:
    """The names of all suites."""
    return sorted(path.stem for path in _DATA.glob("*.yaml"))


def find_suite(name: str) -> Suite:
    """The suite of that name.

    Raises:
        UnknownNameError: If there is none.
    """
    if name not in suite_names():
        raise unknown_name("suite", name, suite_names())
    return _read(_DATA / f"{name}.yaml", Suite)


def settings_of(model: str) -> PaperSettings | None:
    """The published settings of a model, found by its name; None if none are known."""
    return next((found for found in all_settings().values() if re.search(found.match, model.lower())), None)


@cache
def all_settings() -> Mapping[str, PaperSettings]:
    """The published settings by file name."""
    return {path.stem: _read(path, PaperSettings) for path in sorted((_DATA / "models").glob("*.yaml"))}


def _read(path: Path, kind: type[T]) -> T:
    content: Any = read_yaml(path, "suite")
    return TypeAdapter(kind).validate_python(content)
