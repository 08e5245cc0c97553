"""Draws docs/img/predicted.svg: tokens per call that `mmspec bench predict` expects against those of other samples.

    python predicted.py FOLDER

FOLDER has the output of `mmspec bench predict --json` for each model, as rough.json, shapes.json and so on, with a
`--seed` beyond those of the measured figures: results.csv, ../third_party/results and ../photos/results. All pairs are
written to predicted.csv.

    python predicted.py

draws predicted.csv again.
"""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import astuple, dataclass, fields
from math import log
from pathlib import Path

from figure import Cell, read

from mmspec.decoding.default_window import USUAL
from mmspec.metrics.report.canvas import Canvas, Place

HERE = Path(__file__).parent
FILE, FIGURE = HERE / "predicted.csv", HERE / "../../docs/img/predicted.svg"
THIRD_PARTY = {"mnist": "image-gpt-mnist_gen", "fmnist": "image-gpt-fmnist_gen", "vq": "vq-transformer-transformer"}
MODELS = {
    "rough": "rough", "shapes": "shapes", "scenes": "scenes", "spoken": "spoken", "photos": "photographs",
    "mnist": "MNIST pixels", "fmnist": "Fashion-MNIST pixels", "vq": "VQ codes, 9 tokens",
}  # fmt: skip
LOW, HIGH, LEFT, TOP, SIDE = 1.4, 14.0, 90, 60, 620
TICKS = (1.5, 2, 3, 4, 6, 8, 10, 12)
BAND = 0.15


@dataclass(frozen=True)
class Pair:
    """A predicted and a measured figure of one recipe.

    Attributes:
        run: Whether predict ran that window, and did not interpolate.
        samples: Of the measured figure.
    """

    model: str
    recipe: str
    window: int
    run: bool
    predicted: float
    measured: float
    low: float
    high: float
    samples: int


def measured(model: str) -> dict[str, Cell]:
    """Measured tokens per call of the recipes of a model."""
    if model == "photos":
        file = HERE / "../photos/results/methods.json"
        rows = [row for row in json.loads(file.read_text(encoding="utf-8")) if row["setting"] == "T 1"]
    elif model in THIRD_PARTY:
        file = HERE / f"../third_party/results/{THIRD_PARTY[model]}.json"
        rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    else:
        return read(HERE / "results.csv")[model]
    return {row["recipe"]: (*row["tokens_per_call"], row["images"]) for row in rows}


def pairs(folder: Path) -> list[Pair]:
    """Predictions that have a measured counterpart."""
    found = []
    for model in MODELS:
        known = measured(model)
        for row in json.loads((folder / f"{model}.json").read_text(encoding="utf-8"))["rows"]:
            name, width = row["recipe"].split(":window=")
            cell = known.get(row["recipe"], known.get(name) if int(width) == USUAL else None)
            if cell is not None:
                value, low, high, samples = cell
                numbers = (round(number, 2) for number in (row["tokens_per_call"]["value"], value, low, high))
                found.append(Pair(model, name, int(width), row["measured"], *numbers, samples))
    return found


def write(found: list[Pair]) -> None:
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Pair)])
        writer.writerows(astuple(pair) for pair in found)


def load() -> list[Pair]:
    """The pairs of predicted.csv."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return [
            Pair(model, recipe, int(window), run == "True", *map(float, numbers), int(samples))
            for model, recipe, window, run, *numbers, samples in list(csv.reader(file))[1:]
        ]


def place(measured: float, predicted: float) -> Place:
    """Where a pair stands, on logarithmic axes."""
    x, y = (log(value / LOW) / log(HIGH / LOW) * SIDE for value in (measured, predicted))
    return LEFT + x, TOP + SIDE - y


def draw(found: list[Pair]) -> Canvas:
    """The figure: a color per model, and a diamond for what was interpolated."""
    canvas = Canvas(LEFT + SIDE + 300, TOP + SIDE + 90, "Predicted against measured tokens per call, by model")
    for tick in TICKS:
        (x, y), (right, top) = place(tick, tick), place(HIGH, HIGH)
        canvas.line([(x, TOP + SIDE), (x, top)], "line", 1)
        canvas.line([(LEFT, y), (right, y)], "line", 1)
        canvas.text((x, TOP + SIDE + 26), f"{tick:g}", 18, "soft", "middle")
        canvas.text((LEFT - 12, y + 6), f"{tick:g}", 18, "soft", "end")
    for factor, dashed in ((1, False), (1 - BAND, True), (1 + BAND, True)):
        ends = max(LOW, LOW / factor), min(HIGH, HIGH / factor)
        canvas.line([place(end, end * factor) for end in ends], "soft", 1.5, dashed)
    for pair in found:
        canvas.line([place(pair.low, pair.predicted), place(pair.high, pair.predicted)], color(pair.model), 1)
    for pair in found:
        canvas.mark(place(pair.measured, pair.predicted), color(pair.model), 6, not pair.run)
    canvas.text((LEFT, TOP - 24), "predicted tokens per call", bold=True)
    canvas.text((LEFT + SIDE, TOP + SIDE + 62), "measured tokens per call", anchor="end", bold=True)
    x, shown = LEFT + SIDE + 34, [model for model in MODELS if any(pair.model == model for pair in found)]
    for i, model in enumerate(shown):
        y = TOP + 30 + 34 * i
        canvas.mark((x, y), color(model), 7)
        canvas.text((x + 20, y + 7), MODELS[model], 19)
    notes = ("diamonds: interpolated", "bars: 95 % of the measured", f"dashed: {100 * BAND:.0f} % apart")
    for i, note in enumerate(notes):
        canvas.text((x - 8, TOP + 30 + 34 * len(shown) + 28 * (i + 1)), note, 17, "soft")
    return canvas


def color(model: str) -> str:
    return f"c{list(MODELS).index(model)}"


def main() -> None:
    if sys.argv[1:]:
        write(pairs(Path(sys.argv[1])))
    found = load()
    FIGURE.write_text(draw(found).svg() + "\n", encoding="utf-8")
    apart = sorted(100 * abs(pair.predicted / pair.measured - 1) for pair in found)
    print(f"{len(apart)} predictions; half within {apart[len(apart) // 2]:.1f} %, all within {apart[-1]:.1f} %")


if __name__ == "__main__":
    main()
