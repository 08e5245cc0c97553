"""A drawing of lines, marks and texts that is written as SVG, light and dark, or as PNG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Literal

from PIL import Image, ImageDraw, ImageFont

from mmspec.metrics.report.markup import Element, drawing, style
from mmspec.metrics.report.style import COLORS

Anchor = Literal["start", "middle", "end"]
Place = tuple[float, float]

# Of the PNG and of the SVG where the reader prefers light; the SVG has a dark counterpart of each.
_LIGHT = {"text": "#1c2330", "soft": "#566072", "line": "#dfe3ea", "back": "#ffffff"}
_DARK = {"text": "#e6e9ef", "soft": "#a3adbd", "line": "#2c3442", "back": "#11151c"}
_OVERSAMPLE = 2


@dataclass(frozen=True)
class _Line:
    places: Sequence[Place]
    color: str
    width: float
    dashed: bool


@dataclass(frozen=True)
class _Mark:
    place: Place
    color: str
    radius: float
    diamond: bool


@dataclass(frozen=True)
class _Text:
    place: Place
    text: str
    size: float
    color: str
    anchor: Anchor
    bold: bool


@dataclass
class Canvas:
    """A drawing. Colors are "text", "soft", "line", or "c0", "c1", ... of the report's palette.

    Attributes:
        width: Pixels of the PNG, units of the SVG.
        height: Likewise.
        title: What the drawing shows, for screen readers.
    """

    width: int
    height: int
    title: str
    _parts: list[_Line | _Mark | _Text] = field(default_factory=list)

    def line(self, places: Sequence[Place], color: str, width: float = 2, dashed: bool = False) -> None:
        self._parts.append(_Line(places, color, width, dashed))

    def mark(self, place: Place, color: str, radius: float = 8, diamond: bool = False) -> None:
        self._parts.append(_Mark(place, color, radius, diamond))

    def text(
        self,
        place: Place,
        text: str,
        size: float = 22,
        color: str = "text",
        anchor: Anchor = "start",
        bold: bool = False,
    ) -> None:
        """A text whose baseline starts, is centered or ends at a place."""
        self._parts.append(_Text(place, text, size, color, anchor, bold))

    def svg(self) -> str:
        """The drawing as an SVG file."""
        sizes = sorted({f"{part.size:g}" for part in self._parts if isinstance(part, _Text)})
        widths = sorted({f"{part.width:g}" for part in self._parts if isinstance(part, _Line)})
        sheet = _sheet(_LIGHT) + "@media (prefers-color-scheme: dark) { " + _sheet(_DARK) + "}\n"
        sheet += "".join(f".c{i} {{ color: {color}; }}\n" for i, color in enumerate(COLORS))
        sheet += "".join(f".s{size.replace('.', '-')} {{ font-size: {size}px; }}\n" for size in sizes)
        sheet += "".join(f".w{width.replace('.', '-')} {{ stroke-width: {width}; }}\n" for width in widths)
        sheet += "text { font-family: system-ui, sans-serif; fill: currentColor; } .bold { font-weight: 700; }\n"
        sheet += "polyline { fill: none; stroke: currentColor; } .dashed { stroke-dasharray: 10 8; }\n"
        sheet += "path, circle { fill: currentColor; stroke: var(--back); stroke-width: 2; }\n"
        back = Element("rect", class_="back", width=self.width, height=self.height)
        parts = [_element(part) for part in self._parts]
        box = f"0 0 {self.width} {self.height}"
        name = Element("title", self.title)
        return drawing(
            Element("svg", name, style(sheet), back, parts, xmlns="http://www.w3.org/2000/svg", viewBox=box, role="img")
        )

    def png(self) -> Image.Image:
        """The drawing as an image, light."""
        factor = _OVERSAMPLE
        shown = Image.new("RGB", (self.width * factor, self.height * factor), _LIGHT["back"])
        pen = ImageDraw.Draw(shown)
        for part in self._parts:
            _paint(pen, part, factor)
        return shown.resize((self.width, self.height), Image.Resampling.LANCZOS)

    def encode(self, suffix: str) -> bytes:
        """The content of a file: of a PNG for the suffix `.png`, else of an SVG."""
        if suffix.lower() != ".png":
            return self.svg().encode()
        data = BytesIO()
        self.png().save(data, format="PNG", optimize=True)
        return data.getvalue()


def _sheet(colors: dict[str, str]) -> str:
    names = "".join(f".{name} {{ color: {color}; }} " for name, color in colors.items() if name != "back")
    return f":root {{ --back: {colors['back']}; }} .back {{ fill: {colors['back']}; }} {names}\n"


def _element(part: _Line | _Mark | _Text) -> Element:
    if isinstance(part, _Text):
        x, y = part.place
        kind = f"{part.color} s{f'{part.size:g}'.replace('.', '-')}{' bold' if part.bold else ''}"
        return Element("text", part.text, class_=kind, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=part.anchor)
    if isinstance(part, _Line):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in part.places)
        kind = f"{part.color} w{f'{part.width:g}'.replace('.', '-')}{' dashed' if part.dashed else ''}"
        return Element("polyline", class_=kind, points=points)
    x, y = part.place
    if part.diamond:
        r = part.radius * 1.3
        return Element("path", class_=part.color, d=f"M{x:.1f} {y - r:.1f}l{r:g} {r:g}l-{r:g} {r:g}l-{r:g} -{r:g}z")
    return Element("circle", class_=part.color, cx=f"{x:.1f}", cy=f"{y:.1f}", r=f"{part.radius:g}")


def _paint(pen: ImageDraw.ImageDraw, part: _Line | _Mark | _Text, factor: int) -> None:
    color = _LIGHT.get(part.color) or COLORS[int(part.color.removeprefix("c"))]
    if isinstance(part, _Text):
        x, y = part.place
        font = ImageFont.load_default(part.size * factor)
        anchor = {"start": "ls", "middle": "ms", "end": "rs"}[part.anchor]
        text = part.text.encode("latin-1", "replace").decode("latin-1")  # what the font of Pillow has
        weight = factor * part.size / 40 if part.bold else 0
        pen.text((x * factor, y * factor), text, color, font, anchor, stroke_width=weight)
    elif isinstance(part, _Line):
        pairs = [(part.places[i], part.places[i + 1]) for i in range(len(part.places) - 1)]
        for piece in [dash for a, b in pairs for dash in _dashes(a, b)] if part.dashed else pairs:
            pen.line([(x * factor, y * factor) for x, y in piece], color, max(1, round(part.width * factor)))
    else:
        x, y = (v * factor for v in part.place)
        r, edge = part.radius * factor, 2 * factor
        if part.diamond:
            r *= 1.3
            pen.polygon([(x, y - r), (x + r, y), (x, y + r), (x - r, y)], color, _LIGHT["back"], edge)
        else:
            pen.ellipse((x - r, y - r, x + r, y + r), color, _LIGHT["back"], edge)


def _dashes(a: Place, b: Place) -> list[tuple[Place, Place]]:
    """A line in pieces of 10 with gaps of 8."""
    length = ((b[0] - a[0]) ** 2 + (b[1] - a[1]) ** 2) ** 0.5
    count = max(1, round(length / 18))

    def at(share: float) -> Place:
        return a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share

    return [(at(i / count), at((i + 10 / 18) / count)) for i in range(count)]
