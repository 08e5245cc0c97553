"""Samples of the same prompts and seeds side by side, recipe by recipe, as images or audio players."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from mmspec.errors import ArgumentError
from mmspec.metrics.evaluation.journal import find_sample
from mmspec.metrics.evaluation.media import is_audio, open_image
from mmspec.metrics.report.markup import Element, image, recording

PROMPTS = 8  # maximum number of prompts shown
SIDE = 256  # pixels; larger images are scaled down
AUDIO_BYTES = 12_000_000  # of recordings in one page; fewer prompts are shown if they are long

Record = Mapping[str, Any]


def samples(config: Record, folder: Path) -> list[Element]:
    """The first prompts under the first seed, as a table; empty if none of their files exists."""
    recipes, seed = config["recipes"], config["seeds"][0]
    lines: list[Element] = []
    size = 0
    for prompt in config["prompts"][:PROMPTS]:
        paths = [find_sample(folder, recipe, prompt, seed) for recipe in recipes]
        size += sum(path.stat().st_size for path in paths if path is not None and is_audio(path))
        if not any(paths) or (lines and size > AUDIO_BYTES):
            break
        cells = [_cell(path, f"{recipe}: {prompt}") for path, recipe in zip(paths, recipes, strict=True)]
        lines.append(Element("tr", Element("th", prompt), (Element("td", cell) for cell in cells)))
    if not lines:
        return []
    heads = Element("tr", (Element("th", _breakable(name)) for name in ["", *recipes]))
    table = Element("table", Element("thead", heads), Element("tbody", lines), class_="samples")
    return [Element("h2", f"Side by side, seed {seed}"), Element("div", table, class_="scroll")]


def _breakable(recipe: str) -> Iterator[Element | str]:
    """A recipe's text with line breaks allowed after its name and its knobs."""
    for piece in re.split(r"(?<=[:,+])", recipe):
        yield piece
        if piece.endswith((":", ",", "+")):
            yield Element("wbr")


def _cell(path: Path | None, description: str) -> Element | str:
    if path is None:
        return "-"
    if is_audio(path):
        if path.stat().st_size > AUDIO_BYTES:
            return "too long to be shown"
        return recording(path.read_bytes(), description)
    try:
        with open_image(path) as opened:
            small = opened.convert("RGB")
    except ArgumentError:
        return "cannot be read"
    coarse = max(small.size) <= 128  # so few pixels that each should be visible
    small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    data = io.BytesIO()
    small.save(data, format="PNG", optimize=True)
    return image(data.getvalue(), description, class_="coarse" if coarse else None)
