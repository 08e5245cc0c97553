"""Reads the prompts of a suite from the file or folder in which it is published.

| format | content |
|---|---|
| `tsv`, `csv` | a table whose first line names the columns |
| `jsonl` | an object per line |
| `coco` | MS-COCO's captions: the first caption of each image, images by number |
| `folder` | a text file per prompt, by name |
| `classes` | class numbers from 0; needs no file |
| `lst` | fields separated by `|` |
| `normalized` | the `*.normalized.txt` in a folder and its subfolders, by path |

A text file with one prompt per line and the ending .txt is read for every suite.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmspec import limits
from mmspec.errors import ArgumentError
from mmspec.files.documents import parse_json, read_json
from mmspec.files.inputs import read_text
from mmspec.media.listing import list_files
from mmspec.media.text import lines_of
from mmspec.metrics.evaluation.suites.suite import PromptFile, Suite
from mmspec.metrics.prompts import read_prompts

HUB = "hub:"


def suite_prompts(suite: Suite, source: str | None, limit: int | None = None) -> list[str]:
    """The prompts of a suite.

    Args:
        suite: The benchmark.
        source: A file, a folder, or `hub:OWNER/NAME/FILE` of a dataset on the Hub, which is then fetched; None only
            where prompts are class numbers.
        limit: The number of prompts to keep, from the first.

    Raises:
        ArgumentError: If no file is named, or it holds no prompts of this format.
    """
    form = suite.prompts
    if form.format == "classes" and source is None:
        return [str(i) for i in range(form.count or 0)][:limit]
    if source is None:
        raise ArgumentError(f"--prompts: name the prompts of {suite.title}, which mmspec does not hold: {suite.where}")
    path = _fetched(source) if source.startswith(HUB) else Path(source)
    if path.is_file() and path.suffix == ".txt":
        return read_prompts(str(path), limit)
    try:
        found = [" ".join(text.split()) for text in _texts(path, form)]
    except (OSError, csv.Error) as error:
        raise ArgumentError(f"--prompts: cannot read '{path}': {error}") from error
    prompts = list(dict.fromkeys(text for text in found if text))
    if not prompts:
        raise ArgumentError(f"--prompts: '{path}' holds no prompt in the format of {suite.title}")
    for prompt in prompts[:limit]:
        limits.TEXT.check(f"--prompts: a prompt of '{path}'", len(prompt))
    return prompts[:limit]


def _fetched(source: str) -> Path:
    """The file of a dataset on the Hub that the user named."""
    parts = source.removeprefix(HUB).split("/", 2)
    if len(parts) != 3:
        raise ArgumentError(f"--prompts: {source!r} must be hub:OWNER/NAME/FILE")
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(f"{parts[0]}/{parts[1]}", parts[2], repo_type="dataset"))
    except Exception as error:  # of the network, of the Hub, of names
        raise ArgumentError(f"--prompts: cannot fetch {source!r}: {' '.join(str(error).split())}") from error


def _texts(path: Path, form: PromptFile) -> Iterator[str]:
    """The prompts of a file in its order."""
    if form.format in ("folder", "normalized"):
        if not path.is_dir():
            raise ArgumentError(f"--prompts: '{path}' must be a folder")
        deep = form.format == "normalized"
        files = list_files(path, (".normalized.txt",) if deep else (".txt",), nested=deep)
        yield from (read_text(file, "--prompts") for file in files)
    elif form.format == "coco":
        yield from _first_captions(read_json(path, "--prompts"), path)
    elif form.format in ("tsv", "csv"):
        table = csv.DictReader(
            io.StringIO(read_text(path, "--prompts")), delimiter="\t" if form.format == "tsv" else ","
        )
        if form.column not in (table.fieldnames or ()):
            raise ArgumentError(f"--prompts: '{path}' has no column {form.column!r}; it has {table.fieldnames}")
        yield from (row[form.column] or "" for row in table)
    else:
        for number, line in lines_of(io.StringIO(read_text(path, "--prompts"))):
            yield _field(line, form, f"'{path}' line {number}")


def _field(line: str, form: PromptFile, name: str) -> str:
    """The prompt in a line of a .jsonl or .lst file."""
    if form.format == "lst":
        fields = line.split("|")
        if len(fields) < int(form.column):
            raise ArgumentError(f"--prompts: {name} has {len(fields)} fields separated by |; it needs {form.column}")
        return fields[int(form.column) - 1]
    value = parse_json(line, f"--prompts: {name}")
    text = value.get(form.column) if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise ArgumentError(f"--prompts: {name} has no text {form.column!r}")
    return text


def _first_captions(value: Any, path: Path) -> Iterator[str]:
    """The first caption of each image, in order of the images' numbers."""
    try:
        first: dict[int, str] = {}
        for one in value["annotations"]:
            first.setdefault(int(one["image_id"]), str(one["caption"]))
    except (TypeError, KeyError, ValueError) as error:
        raise ArgumentError(f"--prompts: '{path}' holds no captions of MS-COCO: {error!r}") from None
    yield from (first[number] for number in sorted(first))
