"""Where in an image drafts are accepted: on objects, on outlines, in the background."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmspec.errors import MMSpecError
from mmspec.metrics.evaluation.journal import Journal, SampleRecord
from mmspec.metrics.evaluation.media import is_audio, read_image
from mmspec.metrics.image.shapes_regions import REGIONS, regions
from mmspec.metrics.report.grid import grid, interval_cell, number_cell
from mmspec.metrics.report.markup import Element
from mmspec.vision.shapes.domain import IMAGE_SIZE
from mmspec.vision.shapes.grammar import parse

SAMPLES = 64  # images per recipe that are looked at

Record = Mapping[str, Any]


def accepted_by_region(samples: Sequence[SampleRecord], folder: Path) -> NDArray[np.float64]:
    """The share of accepted drafts in each region of each image, float64 [N, 3]; NaN where an image lacks a region.

    Images that are not of `shapes`, or whose tokens per call are unknown, are left out.
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
        if image.shape[:2] != (IMAGE_SIZE, IMAGE_SIZE) or IMAGE_SIZE % rows or IMAGE_SIZE % sample.grid:
            continue
        where = regions(image, rows, sample.grid)
        found.append([accepted[where == i].mean() if (where == i).any() else np.nan for i in range(len(REGIONS))])
    return np.array(found, dtype=np.float64).reshape(-1, len(REGIONS))


def places(record: Record, folder: Path) -> list[Element]:
    """The table of one run; empty for models other than `shapes`, and without a journal."""
    config = record["config"]
    try:
        for prompt in config["prompts"][:SAMPLES]:
            parse(prompt)
        done = Journal(folder).read()
    except MMSpecError:
        return []
    lines = []
    for row in record["rows"]:
        keys = [(row["recipe"], prompt, seed) for prompt in config["prompts"] for seed in config["seeds"]]
        samples = [done[key] for key in keys if key in done][:SAMPLES]
        try:
            shares = accepted_by_region(samples, folder)
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
