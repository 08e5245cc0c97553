"""Samples of the same prompts and seeds side by side, recipe by recipe, as images or audio players."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from mmspec.errors import ArgumentError
from mmspec.media.images import open_image, to_rgb
from mmspec.metrics.evaluation.journal import find_sample
from mmspec.metrics.evaluation.media import is_audio
from mmspec.metrics.report.grid import scroll
from mmspec.metrics.report.markup import Element, image, recording

PROMPTS = 8  # maximum number of prompts shown
SIDE = 256  # pixels of an image that is not embedded at full size
IMAGE_BYTES = 16_000_000  # of images at full size in one page; later ones are scaled down
AUDIO_BYTES = 12_000_000  # of recordings in one page; fewer prompts are shown if they are long
COARSE = 128  # images of so few pixels a side are enlarged without smoothing

Record = Mapping[str, Any]


@dataclass
class Budget:
    """The bytes of images that a page still has room for at full size."""

    left: int = IMAGE_BYTES


def samples(config: Record, folder: Path, budget: Budget | None = None) -> list[Element]:
    """The first prompts under the first seed, as a table; empty if none of their files exists."""
    recipes, seed = config["recipes"], config["seeds"][0]
    room = Budget() if budget is None else budget
    lines: list[Element] = []
    size = 0
    for prompt in config["prompts"][:PROMPTS]:
        paths = [find_sample(folder, recipe, prompt, seed) for recipe in recipes]
        size += sum(path.stat().st_size for path in paths if path is not None and is_audio(path))
        if not any(paths) or (lines and size > AUDIO_BYTES):
            break
        cells = [sample_cell(path, f"{recipe}: {prompt}", room) for path, recipe in zip(paths, recipes, strict=True)]
        lines.append(Element("tr", Element("th", prompt, scope="row"), cells))
    if not lines:
        return []
    heads = Element("tr", (Element("th", breakable(name), scope="col") for name in ["", *recipes]))
    table = Element("table", Element("thead", heads), Element("tbody", lines), class_="samples")
    return [
        Element("h2", f"Side by side, seed {seed}", id="samples"),
        Element("p", "Choose an image to see it at full size beside plain decoding's, with a map of the difference."),
        scroll(table, "Samples side by side"),
    ]


def viewer() -> Element:
    """The dialog that shows two samples at full size and a map of their difference; the script fills it."""
    return Element(
        "dialog",
        Element("p", id="prompt"),
        Element(
            "div",
            Element("figure", Element("img", id="left", alt=""), Element("figcaption")),
            Element("figure", Element("img", id="right", alt=""), Element("figcaption")),
            Element(
                "figure",
                Element("canvas", id="map", role="img", aria_label="map of the difference, yellow where it is large"),
                Element("figcaption", id="mean"),
            ),
            class_="pair",
        ),
        Element(
            "div",
            Element("label", "beside", for_="against"),
            Element("select", id="against"),
            Element("button", "previous recipe", type="button", id="previous"),
            Element("button", "next recipe", type="button", id="next"),
            Element("button", "close", type="button", id="close"),
            class_="buttons",
        ),
        Element("p", "Arrow keys: left and right for recipes, up and down for prompts."),
        id="viewer",
        aria_label="samples at full size",
    )


def breakable(recipe: str) -> Iterator[Element | str]:
    """A recipe's text with line breaks allowed after its name and its knobs."""
    for piece in re.split(r"(?<=[:,+])", recipe):
        yield piece
        if piece.endswith((":", ",", "+")):
            yield Element("wbr")


def sample_cell(path: Path | None, description: str, budget: Budget) -> Element:
    """A table cell with a player, or with an image that the script shows at full size."""
    if path is None:
        return Element("td", "-")
    if is_audio(path):
        if path.stat().st_size > AUDIO_BYTES:
            return Element("td", "too long to be shown")
        return Element("td", recording(path.read_bytes(), description))
    try:
        shown = embedded_image(path, description, budget)
    except ArgumentError:
        return Element("td", "cannot be read")
    return Element("td", Element("button", shown, type="button", class_="zoom"))


def embedded_image(path: Path, description: str, budget: Budget) -> Element:
    """An image, at full size while the budget lasts.

    Raises:
        ArgumentError: If it cannot be read.
    """
    with open_image(path) as opened:
        whole = to_rgb(opened)
    data = png_bytes(whole)
    if len(data) > budget.left and max(whole.size) > SIDE:
        small = whole.copy()
        small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        data = png_bytes(small)
    else:
        budget.left -= len(data)
    return image(data, description, class_="coarse" if max(whole.size) <= COARSE else None)


def png_bytes(shown: Image.Image) -> bytes:
    data = io.BytesIO()
    shown.save(data, format="PNG", optimize=max(shown.size) <= SIDE)
    return data.getvalue()
