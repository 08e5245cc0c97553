"""Where in an image drafts are accepted: on objects, on outlines, in the background."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmspec.errors import MMSpecError, PromptError
from mmspec.media.images import read_image
from mmspec.metrics.evaluation.journal import Journal, SampleRecord
from mmspec.metrics.evaluation.media import is_audio
from mmspec.metrics.extractors.image import Images
from mmspec.metrics.image.regions import REGIONS, regions, scenes_objects, shapes_objects
from mmspec.metrics.report.grid import grid, interval_cell, number_cell
from mmspec.metrics.report.markup import Element
from mmspec.vision.scenes import domain as scenes
from mmspec.vision.scenes import grammar as scenes_grammar
from mmspec.vision.shapes import domain as shapes
from mmspec.vision.shapes import grammar as shapes_grammar

SAMPLES = 64  # images per recipe that are looked at

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Domain:
    """Images whose objects are known by their colors.

    Attributes:
        side: Height and width, pixels.
        parse: Reads a prompt, and raises `mmspec.errors.PromptError` for one of another grammar.
        object_pixels: The pixels [H, W] of objects of an image uint8 [H, W, 3].
    """

    side: int
    parse: Callable[[str], object]
    object_pixels: Callable[[Images], NDArray[np.bool_]]


DOMAINS = (
    Domain(shapes.IMAGE_SIZE, shapes_grammar.parse, shapes_objects),
    Domain(scenes.IMAGE_SIZE, scenes_grammar.parse, scenes_objects),
)


def domain_of(prompts: Sequence[str]) -> Domain | None:
    """The domain whose grammar all prompts follow, if there is one."""
    for domain in DOMAINS:
        try:
            for prompt in prompts:
                domain.parse(prompt)
        except PromptError:
            continue
        return domain
    return None


def accepted_by_region(samples: Sequence[SampleRecord], folder: Path, domain: Domain) -> NDArray[np.float64]:
    """The share of accepted drafts in each region of each image, float64 [N, 3]; NaN where an image lacks a region.

    Images that are not of the domain, or whose tokens per call are unknown, are left out.
    """
    found = []
    for sample in samples:
        if not sample.gains or sample.grid is None or sum(sample.gains) != sample.tokens:
            continue
        accepted = np.ones(sample.tokens, dtype=bool)
        accepted[np.cumsum(sample.gains) - 1] = False  # the last token of a call is resampled, or the bonus token
        rows = sample.tokens // sample.grid
        path = folder / sample.file
        if is_audio(path):
            continue
        image = read_image(path)
        if image.shape[:2] != (domain.side, domain.side) or domain.side % rows or domain.side % sample.grid:
            continue
        where = regions(domain.object_pixels(image), rows, sample.grid)
        found.append([accepted[where == i].mean() if (where == i).any() else np.nan for i in range(len(REGIONS))])
    return np.array(found, dtype=np.float64).reshape(-1, len(REGIONS))


def places(record: Record, folder: Path) -> list[Element]:
    """The table of one run; empty for models other than `shapes` and `scenes`, and without a journal."""
    config = record["config"]
    domain = domain_of(config["prompts"][:SAMPLES])
    if domain is None:
        return []
    try:
        done = Journal(folder).read()
    except MMSpecError:
        return []
    lines = []
    for row in record["rows"]:
        keys = [(row["recipe"], prompt, seed) for prompt in config["prompts"] for seed in config["seeds"]]
        samples = [done[key] for key in keys if key in done][:SAMPLES]
        try:
            shares = accepted_by_region(samples, folder, domain)
        except MMSpecError:
            continue
        if row["recipe"] == "plain" or not len(shares):
            continue
        cells = [interval_cell(_mean(shares[:, i])) for i in range(len(REGIONS))]
        lines.append(
            Element("tr", Element("th", row["recipe"], scope="row"), number_cell(str(len(shares)), len(shares)), cells)
        )
    if not lines:
        return []
    title = "Accepted drafts on objects, outlines and background"
    return [
        Element("h3", title),
        Element(
            "p",
            "The share of tokens that were accepted drafts, by what the image shows at their place; the mean over "
            "images with its 95 % interval. An outline is a token that an object covers in part.",
        ),
        grid(["recipe", "images", *REGIONS], lines, title),
    ]


def _mean(values: NDArray[np.float64]) -> dict[str, float] | None:
    known = values[np.isfinite(values)]
    if len(known) < 2:
        return None
    half = 1.96 * float(known.std(ddof=1) / np.sqrt(len(known)))
    mean = float(known.mean())
    return {"value": mean, "low": mean - half, "high": mean + half}
