"""Draws docs/img/windows.svg: what a window gains, and what it costs, by its width and the model.

python examples/window_auto/curves.py
"""

from __future__ import annotations

import json
from math import log
from pathlib import Path

from processes import FOUND, PLAIN, WIDTHS, Runs, name_of

from mmspec.metrics.report.canvas import Canvas, Place

FIGURE = Path(__file__).parent / "../../docs/img/windows.svg"
LEFT, TOP, SIDE, APART, HIGH = 70, 70, 420, 90, 16.0
TICKS = (1, 2, 4, 8, 16)
COLORS = 8


def place(panel: int, width: int, value: float) -> Place:
    """Where a value stands in panel 0 or 1, on logarithmic axes."""
    x = LEFT + panel * (SIDE + APART) + log(width) / log(max(WIDTHS)) * SIDE
    return x, TOP + SIDE - log(max(1.0, value)) / log(HIGH) * SIDE


def draw(found: dict[str, tuple[dict[int, float], dict[int, float]]]) -> Canvas:
    """The figure, from tokens and single steps per call by width and name."""
    canvas = Canvas(LEFT + 2 * SIDE + APART + 300, TOP + SIDE + 90, "Tokens and cost of a call by window, by model")
    for panel, title in enumerate(("tokens per call", "cost of a call, in plain steps")):
        left, top = place(panel, 1, HIGH)
        canvas.text((left, top - 26), title, bold=True)
        canvas.text((left + SIDE, TOP + SIDE + 62), "window", anchor="end")
        for tick in TICKS:
            _, y = place(panel, 1, tick)
            canvas.line([(left, y), (left + SIDE, y)], "line", 1)
            canvas.text((left - 12, y + 6), f"{tick}", 18, "soft", "end")
        for width in (1, *WIDTHS):
            x, _ = place(panel, width, 1)
            canvas.line([(x, TOP + SIDE), (x, top)], "line", 1)
            canvas.text((x, TOP + SIDE + 26), f"{width}", 18, "soft", "middle")
    for i, (name, curves) in enumerate(found.items()):
        color, is_dashed = f"c{i % COLORS}", i >= COLORS
        for panel, curve in enumerate(curves):
            places = [place(panel, width, value) for width, value in curve.items()]
            canvas.line(places, color, 2.5, is_dashed)
            for each in places:
                canvas.mark(each, color, 5, is_dashed)
        x, y = LEFT + 2 * SIDE + APART + 40, TOP + 24 + 30 * i
        canvas.mark((x, y), color, 7, is_dashed)
        canvas.text((x + 20, y + 7), name, 18)
    return canvas


def main() -> None:
    found = {}
    for line in json.loads(FOUND.read_text()):
        ways = {way: Runs(*runs) for way, runs in line["runs"].items()}
        gained = {width: ways[str(width)].tokens_per_call for width in WIDTHS}
        cost = {width: gained[width] / ways[str(width)].speed for width in WIDTHS}
        found[name_of(line)] = {1: ways[PLAIN].speed} | gained, {1: 1.0} | cost
    FIGURE.write_text(draw(found).svg() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
