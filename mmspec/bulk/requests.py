"""The samples that a bulk run is to generate, from lines of text or of JSON."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from mmspec import limits
from mmspec.errors import ArgumentError, did_you_mean
from mmspec.files import STDOUT
from mmspec.files.documents import first_error, parse_json
from mmspec.files.inputs import bounded_lines
from mmspec.media.text import open_text, prompt_lines
from mmspec.recipes import parse
from mmspec.sampling.seeds import pipeline_seed

NAME_DIGITS = 20  # 80 bits: among a billion samples two share a name with probability 4e-7
Seed = Annotated[int, Field(ge=0, lt=2**62)]
Size = Annotated[int, Field(ge=1, lt=2**31)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True)
class SampleSettings:
    """Arguments of a pipeline's call; None is the pipeline's default.

    Attributes:
        recipe: How to decode.
        temperature: 0 takes the most likely token.
        top_k: Keeps the k most likely tokens, 0 all.
        top_p: Keeps the most likely tokens of this total probability.
        guidance_scale: Classifier-free guidance, 1 and below is off.
        negative_prompt: The text of the unconditional prompt, of images.
        height: In pixels.
        width: In pixels.
        voice: A voice of a speech model.
        min_p: Keeps the tokens at least this much as likely as the most likely one, 0 all.
        typical_p: Keeps the most typical tokens of this total probability, 1 all.
        condition_on_previous_chunks: Whether each part of a long text continues the one before it.
    """

    recipe: str | None = None
    temperature: Finite | None = None
    top_k: int | None = None
    top_p: Finite | None = None
    guidance_scale: Finite | None = None
    negative_prompt: str | None = None
    height: Size | None = None
    width: Size | None = None
    voice: str | None = None
    min_p: Finite | None = None
    typical_p: Finite | None = None
    condition_on_previous_chunks: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """Those that are not None, by name."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}


@dataclass(frozen=True)
class SampleRequest:
    """One sample to be generated.

    Attributes:
        prompt: The text.
        seed: The seed that the pipeline is called with.
        settings: The other arguments of the call.
        id: The caller's name of the sample; samples of different ids are different samples.
    """

    prompt: str
    seed: int
    settings: SampleSettings = SampleSettings()
    id: str | None = None

    @property
    def name(self) -> str:
        """A name that depends on the content only, so that a list may grow and be reordered between runs."""
        content = {"prompt": self.prompt, "seed": self.seed, "id": self.id, **self.settings.to_dict()}
        text = json.dumps({key: value for key, value in content.items() if value is not None}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:NAME_DIGITS]


@dataclass(frozen=True)
class PromptLine:
    """A line of a JSONL file of prompts; `SampleSettings` has the other keys."""

    prompt: str
    seed: Seed | None = None
    id: str | None = None


SETTING_NAMES = tuple(field.name for field in fields(SampleSettings))
KEYS = [*(field.name for field in fields(PromptLine)), *SETTING_NAMES]


def read_requests(
    source: Path,
    settings: SampleSettings,
    *,
    seed: int = 0,
    number: int = 1,
    limit: int | None = None,
    on_lines: Callable[[int], None] | None = None,
) -> list[SampleRequest]:
    """The samples of a file of prompts, each once.

    A line is a prompt, or a JSON object with the key `prompt` and any of `seed`, `id` and the names of
    `SampleSettings`. Blank lines, and lines that start with #, are skipped.

    Args:
        source: The file; - is stdin.
        settings: For lines that do not set them.
        seed: Lines without a seed get one that is computed from this and their prompt.
        number: Samples per line. The seeds of sample i add i: to the line's seed, or to `seed`.
        limit: Use the first lines only; None uses all.
        on_lines: Called with the number of lines that are used.

    Raises:
        ArgumentError: If the file cannot be read, holds no prompt, or a line is not allowed; the line is named.
        UnknownNameError: If a recipe does not exist.
    """
    found = dict[str, SampleRequest]()
    lines = 0
    for lines, (place, line) in enumerate(islice(_lines(source), limit), 1):
        limits.SAMPLES.check("--prompts and --number", lines * number)
        for request in _requests(line, place, settings, seed, number):
            found.setdefault(request.name, request)
    if not found:
        raise ArgumentError(f"--prompts: '{source}' holds no prompt")
    if on_lines is not None:
        on_lines(lines)
    return list(found.values())


def requests_of(
    rows: Sequence[Mapping[str, Any]], settings: SampleSettings, *, seed: int = 0, place: str = "row"
) -> list[SampleRequest]:
    """One sample per mapping with the keys of a JSON line.

    Raises:
        ArgumentError: If a mapping is not allowed; it is named by `place` and its index.
        UnknownNameError: If a recipe does not exist.
    """
    return [_from_mapping(row, f"{place} {i}", settings, seed, 0) for i, row in enumerate(rows)]


def _lines(source: Path) -> Iterator[tuple[str, str]]:
    """The lines of a file that hold prompts, each with its place."""
    try:
        if source == STDOUT:
            if sys.stdin is None:
                raise ArgumentError("--prompts: stdin is closed; - reads prompts from it")
            yield from _prompts(bounded_lines(sys.stdin, "--prompts: stdin"), "stdin")
            return
        with open_text(source) as file:
            yield from _prompts(bounded_lines(file, f"--prompts: '{source}'"), f"'{source}'")
    except ArgumentError:
        raise
    except (OSError, ValueError) as error:  # not UTF-8, or a path with a null character
        raise ArgumentError(
            f"--prompts: cannot read '{source}': {getattr(error, 'strerror', None) or error}"
        ) from error


def _prompts(lines: Iterable[str], source: str) -> Iterator[tuple[str, str]]:
    for number, line in prompt_lines(lines):
        yield f"--prompts: {source} line {number}", line


def _requests(line: str, place: str, settings: SampleSettings, seed: int, number: int) -> Iterator[SampleRequest]:
    row = parse_json(line, place) if line.startswith("{") else {"prompt": line}
    for i in range(number):
        yield _from_mapping(row, place, settings, seed, i)


def _from_mapping(
    row: Mapping[str, Any], place: str, settings: SampleSettings, seed: int, offset: int
) -> SampleRequest:
    for key in row:
        if key not in KEYS:
            raise ArgumentError(f"{place}: unknown key {key!r}{did_you_mean(str(key), KEYS)}; known: {', '.join(KEYS)}")
    own = [field.name for field in fields(PromptLine)]
    named = {key: value for key, value in row.items() if key in own}
    others = {key: value for key, value in row.items() if key not in own and value is not None}
    try:
        line: PromptLine = _validate(PromptLine, named)
        chosen: SampleSettings = _validate(SampleSettings, settings.to_dict() | others)
    except ValidationError as error:
        raise ArgumentError(f"{place}: {first_error(error)}") from None
    prompt = line.prompt
    if not prompt.strip() or any("\ud800" <= letter <= "\udfff" for letter in prompt):
        raise ArgumentError(f"{place}: prompt {prompt!r} is empty, or is not valid Unicode")
    limits.TEXT.check(place, len(prompt))
    if chosen.recipe is not None:
        _checked_recipe(chosen.recipe)
    drawn = pipeline_seed(prompt, seed + offset) if line.seed is None else line.seed + offset
    return SampleRequest(prompt, drawn, chosen, line.id)


@cache
def _checked_recipe(name: str) -> None:
    parse(name)


def _validate(kind: Any, values: Mapping[str, Any]) -> Any:
    # As JSON, because a strict check of Python values takes nothing but the class itself.
    return _adapter(kind).validate_json(json.dumps(values), strict=True)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
