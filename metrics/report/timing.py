"""Where the seconds of a recipe's samples go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmspec.metrics.report.markup import Element

Record = Mapping[str, Any]
BAR = 1000  # units of length of the longest bar
PARTS = ("target", "drafter", "rule", "other")


def timing(rows: Sequence[Record]) -> list[Element]:
    """A bar per recipe: the seconds per sample by part; the rest is encoding the prompt and decoding the tokens."""
    scale = BAR / max([row["speed"]["seconds"] for row in rows if row["speed"]["seconds"]], default=1)
    lines = []
    for row in rows:
        speed = row["speed"]
        pieces = {part: speed["parts"].get(part, 0.0) for part in PARTS}
        pieces["rest"] = max(speed["seconds"] - sum(pieces.values()), 0.0)
        rects, at = [], 0.0
        for part, seconds in pieces.items():
            title = Element("title", f"{part}: {seconds:.3f} s")
            size = {"x": f"{at:.2f}", "width": f"{seconds * scale:.2f}"}
            rects.append(Element("rect", title, class_=part, y=0, height=1, **size))
            at += seconds * scale
        label = f"{row['recipe']}: " + ", ".join(f"{part} {seconds:.3f} s" for part, seconds in pieces.items())
        svg = Element("svg", rects, viewBox=f"0 0 {BAR} 1", preserveAspectRatio="none", role="img", aria_label=label)
        total = Element("b", f"{speed['seconds']:.3f} s")
        lines += [Element("div", row["recipe"]), Element("div", svg, total, class_="time")]
    legend = [Element("span", Element("i", class_=part), part) for part in (*PARTS, "rest")]
    return [
        Element("h2", "Where the time goes", id="time"),
        Element(
            "p",
            "Seconds per sample; ",
            Element("i", "rest"),
            " is encoding the prompt and decoding the tokens to an image or audio.",
        ),
        Element("div", legend, class_="legend"),
        Element("div", lines, class_="times"),
    ]
