"""Draws figure.svg and writes results.csv, from the sample journals of results folders of `mmspec eval`.

    python figure.py RESULTS/rough,RESULTS/rough-more RESULTS/shapes RESULTS/spoken

Each argument is one panel, named after its first folder; of a recipe that several of its folders have, the one with the
most samples counts. Folders after `--` are in the file only. Tokens per target call are those of all
samples together, with 95 % intervals by bootstrap over samples.

    python figure.py results.csv rough shapes spoken scenes

draws these models of the file again, and leaves it as it is.
"""

from __future__ import annotations

import csv
import json
import random
import sys
from collections import defaultdict
from math import log2
from pathlib import Path

from mmspec.decoding.default_window import USUAL
from mmspec.recipes import parse

WIDTH, HEIGHT, LEFT, TOP, GAP = 300, 300, 46, 34, 60
COLORS = {"scd": "#c0392b", "scd, gumbel": "#e67e22", "sjd": "#2980b9", "scd, refresh=model": "#8e44ad",
          "scd, refresh=eagle": "#16a085", "scd, refresh=block": "#1abc9c", "scd, refresh=model, layers=4": "#af7ac5",
          "scd, start=model": "#7f8c8d", "scd, start=eagle": "#5d6d7e", "scd, start=block": "#aab7b8",
          "table": "#27ae60", "recycle": "#95a5a6", "draft": "#34495e", "eagle": "#d35400", "block": "#f1c40f",
          "layer-skip": "#bdc3c7", "scd, refresh=outer": "#e91e63",
          "scd, refresh=outer, passes=4, outer head": "#880e4f", "scd, refresh=outer, layers=4": "#f48fb1",
          "scd, refresh=outer, layers=4, passes=2": "#4a148c"}  # fmt: skip
Cell = tuple[float, float, float, int]
HEAD = ", outer head"  # after a recipe that refreshes by the outer layers with a trained head
FIELDS = ("model", "recipe", "tokens_per_call", "low", "high", "samples")


def measured(folder: Path) -> dict[str, Cell]:
    """Tokens per call of each recipe: value, both ends of the interval, and the number of samples."""
    samples: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for file in sorted(folder.glob("samples-*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            sample = json.loads(line)
            samples[sample["recipe"]].append((sample["tokens"], sample["calls"]))
    rng, found = random.Random(0), {}
    results = folder / "results.json"
    drafter = results.is_file() and json.loads(results.read_text(encoding="utf-8"))["config"]["drafter"]
    for recipe, rows in samples.items():
        draws = []
        for _ in range(1000):
            chosen = rng.choices(rows, k=len(rows))
            draws.append(sum(t for t, _ in chosen) / sum(c for _, c in chosen))
        draws.sort()
        value = sum(t for t, _ in rows) / sum(c for _, c in rows)
        knobs = parse(recipe).knobs
        with_head = drafter and knobs.get("refresh") == "outer" and knobs["layers"] in (0, 2)
        found[recipe + HEAD * bool(with_head)] = value, draws[25], draws[974], len(rows)
    return found


def merged(folders: str) -> dict[str, Cell]:
    """The recipes of several folders, separated by commas."""
    found: dict[str, Cell] = {}
    for folder in folders.split(","):
        for recipe, cell in measured(Path(folder)).items():
            if recipe not in found or found[recipe][3] < cell[3]:
                found[recipe] = cell
    return found


def read(file: Path) -> dict[str, dict[str, Cell]]:
    """The recipes of each model in results.csv."""
    found: dict[str, dict[str, Cell]] = defaultdict(dict)
    with file.open(encoding="utf-8", newline="") as rows:
        for model, recipe, value, low, high, count in list(csv.reader(rows))[1:]:
            found[model][recipe] = float(value), float(low), float(high), int(count)
    return found


def write(models: dict[str, dict[str, Cell]], file: Path) -> None:
    """Writes results.csv."""
    with file.open("w", encoding="utf-8", newline="") as rows:
        writer = csv.writer(rows, lineterminator="\n")
        writer.writerow(FIELDS)
        for model, cells in models.items():
            for recipe, (value, low, high, count) in cells.items():
                writer.writerow([model, recipe, f"{value:.2f}", f"{low:.2f}", f"{high:.2f}", count])


def family(recipe: str) -> tuple[str, int]:
    """The line of the figure that a recipe belongs to, and its window."""
    bare = recipe.removesuffix(HEAD)
    parsed = parse(bare)
    names = (
        ("coupling", "refresh", "start", "layers", "refreshed", "passes") if parsed.parts[0] in ("scd", "sjd") else ()
    )
    options = {name: parsed.knobs[name] for name in names if name in parsed.knobs}
    given = [f"{k}={v}" for k, v in options.items() if v not in ("maximal", "none", "auto", 0, 1)]
    window = USUAL if parsed.window_by_model else parsed.window  # the models of the figure have the usual width
    return ", ".join([parsed.parts[0], *given]).replace("coupling=", "") + recipe[len(bare) :], window


def panel(name: str, cells: dict[str, Cell], x0: int) -> list[str]:
    """The marks of one model: a line per family over the window, on a logarithmic axis."""
    lines: dict[str, list[tuple[int, Cell]]] = defaultdict(list)
    for recipe, cell in cells.items():
        title, window = family(recipe)
        if title in COLORS and window > 1:
            lines[title].append((window, cell))
    top = max(cell[2] for points in lines.values() for _, cell in points) * 1.05

    def place(window: int, value: float) -> tuple[float, float]:
        span = log2(window) - 2  # from 4 on
        return x0 + (span + 0.3) / 5.6 * WIDTH, TOP + HEIGHT * (1 - value / top)

    parts = [f'<text x="{x0 + WIDTH / 2}" y="20" text-anchor="middle" font-weight="bold">{name}</text>']
    for window in (4, 8, 16, 32, 64, 128):
        x, _ = place(window, 0)
        parts.append(f'<path d="M{x:.1f} {TOP}V{TOP + HEIGHT}" stroke="#eee"/>')
        parts.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{window}</text>')
    step = 1 if top < 7 else 2 if top < 14 else 4
    for value in range(0, int(top) + 1, step):
        _, y = place(4, value)
        parts.append(f'<path d="M{x0} {y:.1f}h{WIDTH}" stroke="#eee"/>')
        parts.append(f'<text x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end">{value}</text>')
    for title, points in lines.items():
        points.sort()
        path = " ".join("{:.1f},{:.1f}".format(*place(w, cell[0])) for w, cell in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLORS[title]}" stroke-width="2"/>')
        for window, (value, low, high, _) in points:
            (x, y), (_, y1), (_, y2) = place(window, value), place(window, low), place(window, high)
            parts.append(f'<path d="M{x:.1f} {y1:.1f}V{y2:.1f}" stroke="{COLORS[title]}" opacity="0.5"/>')
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLORS[title]}"/>')
    return parts


def main() -> None:
    if sys.argv[1].endswith(".csv"):
        found = read(Path(sys.argv[1]))
        draw({name: found[name] for name in sys.argv[2:]})
        return
    groups = {Path(group.split(",")[0]).name: group for group in sys.argv[1:] if group != "--"}
    everything = {name: merged(group) for name, group in groups.items()}
    drawn = sys.argv[1:].index("--") if "--" in sys.argv else len(groups)
    draw(dict(list(everything.items())[:drawn]))
    write(everything, Path("results.csv"))


def draw(panels: dict[str, dict[str, Cell]]) -> None:
    """Writes figure.svg."""
    width = LEFT + len(panels) * (WIDTH + GAP)
    titles = {family(recipe)[0] for cells in panels.values() for recipe in cells}
    shown = [(title, color) for title, color in COLORS.items() if title in titles]
    height = HEIGHT + 82 + 18 * -(-len(shown) // 6)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for i, (name, cells) in enumerate(panels.items()):
        parts += panel(name, cells, LEFT + i * (WIDTH + GAP))
    parts.append(
        f'<text x="{width / 2}" y="{TOP + HEIGHT + 36}" text-anchor="middle">window (tokens in a target call)</text>'
    )
    for i, (title, color) in enumerate(shown):
        x, y = LEFT + i % 6 * (width - LEFT) // 6, TOP + HEIGHT + 56 + i // 6 * 18
        parts.append(
            f'<path d="M{x} {y - 4}h18" stroke="{color}" stroke-width="3"/><text x="{x + 23}" y="{y}">{title}</text>'
        )
    Path("figure.svg").write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
