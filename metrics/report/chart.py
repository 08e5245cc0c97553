"""Quality against speed as an SVG: a point per recipe, its intervals as bars, and the Pareto front."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from mmspec.metrics.report.markup import Element
from mmspec.metrics.report.style import COLORS

WIDTH, HEIGHT = 480, 340
LEFT, RIGHT, TOP, BOTTOM = 66, 20, 18, 50
Span = tuple[float, float, float]  # value, low, high
_Place = Callable[[float, float], tuple[float, float]]


@dataclass(frozen=True)
class Point:
    """One recipe in the chart.

    Attributes:
        name: Shown on hover.
        family: Points of one family share a color and are joined by a line, from slow to fast.
        x: Its speed.
        y: Its quality.
        exact: Exact recipes are diamonds, others are circles.
        mark: The label beside the point.
        key: What identifies the recipe on the page; "" for none.
    """

    name: str
    family: str
    x: Span
    y: Span
    exact: bool = False
    mark: str = ""
    key: str = ""


def chart(points: Sequence[Point], label: str, higher_is_better: bool | None, x_label: str = "speed-up") -> Element:
    """The figure with the SVG and its legend.

    Args:
        points: The recipes.
        label: Of the vertical axis.
        higher_is_better: On the vertical axis, for the front; None omits the front.
        x_label: Of the horizontal axis, on which higher is better.
    """
    xs, ys = ticks([v for p in points for v in p.x]), ticks([v for p in points for v in p.y])

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (x - xs[0]) / (xs[-1] - xs[0]) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - (y - ys[0]) / (ys[-1] - ys[0]) * (HEIGHT - TOP - BOTTOM),
        )

    parts = _axes(xs, ys, label, x_label, at)
    if higher_is_better is not None:
        corners = [at(p.x[0], p.y[0]) for p in front(points, higher_is_better)]
        parts.append(Element("polyline", class_="front", points=_path(corners)))
    families = list(dict.fromkeys(p.family for p in points))
    colors = {family: f"c{i % len(COLORS)}" for i, family in enumerate(families)}
    for family in families:
        line = sorted(at(p.x[0], p.y[0]) for p in points if p.family == family)
        if len(line) > 1:
            parts.append(Element("polyline", class_=f"sweep {colors[family]}", points=_path(line)))
    marks = _readable(points, at)
    parts += [_point(p, mark, colors[p.family], label, x_label, at) for p, mark in zip(points, marks, strict=True)]
    legend = [Element("span", Element("i", class_=colors[family]), family) for family in families]
    svg = Element("svg", parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=f"{label} against {x_label}")
    return Element("figure", svg, Element("figcaption", legend, class_="legend"))


def _path(corners: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)


def _point(p: Point, written: str, color: str, label: str, x_label: str, at: _Place) -> Element:
    x, y = at(p.x[0], p.y[0])
    (left, _), (right, _) = at(p.x[1], p.y[0]), at(p.x[2], p.y[0])
    (_, low), (_, high) = at(p.x[0], p.y[1]), at(p.x[0], p.y[2])
    return Element(
        "g",
        Element("title", f"{p.name}: {x_label} {_span(p.x)}, {label} {_span(p.y)}"),
        Element("path", class_="bar", d=f"M{left:.1f} {y:.1f}H{right:.1f}M{x:.1f} {low:.1f}V{high:.1f}"),
        Element("path", class_="dot", d=f"M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z")
        if p.exact
        else Element("circle", class_="dot", cx=f"{x:.1f}", cy=f"{y:.1f}", r="4.5"),
        Element("text", written, class_="mark", x=f"{x + 7:.1f}", y=f"{y - 6:.1f}") if written else None,
        class_=color,
        data_recipe=p.key or None,
    )


def _readable(points: Sequence[Point], at: _Place) -> list[str]:
    """The labels, except those that would overlap an earlier label or a point; their text is in the titles only."""
    taken = [(x - 6, x + 6, y - 5, y + 5) for x, y in (at(p.x[0], p.y[0]) for p in points)]
    marks = []
    for p in points:
        x, y = at(p.x[0], p.y[0])
        box = (x + 7, x + 7 + 6.5 * len(p.mark), y - 15, y - 6)
        free = all(box[1] < a or b < box[0] or box[3] < c or d < box[2] for a, b, c, d in taken)
        marks.append(p.mark if free else "")
        if free:
            taken.append(box)
    return marks


def front(points: Sequence[Point], higher_is_better: bool) -> list[Point]:
    """The Pareto front: the points that no other point beats in both speed and quality, from slow to fast."""
    sign = 1 if higher_is_better else -1
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (-p.x[0], -sign * p.y[0])):
        if not best or sign * point.y[0] > sign * best[-1].y[0]:
            best.append(point)
    return best[::-1]


def _axes(xs: Sequence[float], ys: Sequence[float], label: str, x_label: str, at: _Place) -> list[Element]:
    parts = []
    for x in xs:
        px, _ = at(x, ys[0])
        parts.append(Element("path", class_="grid", d=f"M{px:.1f} {TOP}V{HEIGHT - BOTTOM}"))
        parts.append(Element("text", f"{x:g}", x=f"{px:.1f}", y=HEIGHT - BOTTOM + 19, text_anchor="middle"))
    for y in ys:
        _, py = at(xs[0], y)
        parts.append(Element("path", class_="grid", d=f"M{LEFT} {py:.1f}H{WIDTH - RIGHT}"))
        parts.append(Element("text", tick_label(y), x=LEFT - 8, y=f"{py + 4.5:.1f}", text_anchor="end"))
    middle, center = (TOP + HEIGHT - BOTTOM) / 2, (LEFT + WIDTH - RIGHT) / 2
    parts.append(Element("text", x_label, class_="axis", x=center, y=HEIGHT - 8, text_anchor="middle"))
    turned = f"rotate(-90 15 {middle})"
    parts.append(Element("text", label, class_="axis", x=15, y=middle, transform=turned, text_anchor="middle"))
    return parts


def tick_label(value: float) -> str:
    return f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:g}"


def ticks(values: Sequence[float]) -> list[float]:
    """Four to nine round numbers whose range holds the values."""
    low, high = min(values), max(values)
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # ticks are rounded to ten digits
        margin = abs(low) / 20 or 0.5
        low, high = low - margin, high + margin
    raw = (high - low) / 4
    power = 10.0 ** floor(log10(raw))
    step = power * max(m for m in (1, 2, 5) if m * power <= raw)
    first, last = floor(low / step), ceil(high / step)
    return [float(f"{i * step:.10g}") for i in range(first, last + 1)]


def _span(span: Span) -> str:
    return f"{span[0]:.4g} [{span[1]:.4g}, {span[2]:.4g}]"
