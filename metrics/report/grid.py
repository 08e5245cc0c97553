"""Tables of the page: heads that sort, rows with a permanent address, cells with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from mmspec.metrics.evaluation.results import short
from mmspec.metrics.report.markup import Children, Element

Record = Mapping[str, Any]


def key_of(recipe: str) -> str:
    """What identifies a recipe on the page and in its address, without spaces."""
    return "_".join(recipe.split())


def link(recipe: str) -> Element:
    """A link to the recipe's row, which is also the address to pass on."""
    return Element("a", recipe, href="#recipe=" + quote(key_of(recipe), safe=":=,.", errors="replace"))


def name_cell(recipe: str) -> Element:
    """The head of a recipe's row."""
    return Element("th", link(recipe), scope="row")


def number_cell(content: Children, value: float | None, class_: str | None = None) -> Element:
    """A cell that sorts by a number; without one it comes last."""
    return Element("td", content, class_=class_, data_sort="" if value is None else f"{value:.10g}")


def interval_cell(interval: Record | None, class_: str | None = None, notes: Sequence[str] = ()) -> Element:
    """A value with the ends of its interval below it, and notes below these."""
    value, _, ends = short(interval).partition(" ")
    below = [Element("small", text) for text in (ends, *notes) if text]
    return number_cell([value, *((" ", one) for one in below)], None if interval is None else interval["value"], class_)


def grid(heads: Sequence[str], lines: Sequence[Element], caption: str, texts: Sequence[str] = ("recipe",)) -> Element:
    """A table that scrolls sideways on its own, and sorts where scripts run.

    Args:
        heads: Of the columns.
        lines: The rows.
        caption: What the table holds, for screen readers.
        texts: The heads of columns that are aligned left.
    """
    cells = [Element("th", name, scope="col", class_="text" if name in texts else None) for name in heads]
    table = Element(
        "table",
        Element("caption", caption),
        Element("thead", Element("tr", cells)),
        Element("tbody", lines),
        class_="sortable",
    )
    return scroll(table, caption)


def scroll(table: Element, label: str) -> Element:
    """A part of the page that scrolls sideways, by the keyboard too."""
    return Element("div", table, class_="scroll", role="region", tabindex=0, aria_label=label)


def rounded(value: float) -> str:
    """Two significant digits, without an exponent for what fits."""
    return f"{float(f'{value:.2g}'):,.0f}" if 10 <= abs(value) < 1e9 else f"{value:.2g}"


def definitions(values: Record) -> Element:
    """Keys and values; those without a value are left out."""
    known = {key: value for key, value in values.items() if value not in (None, "")}
    shown = {key: ", ".join(map(str, v)) if isinstance(v, list) else str(v) for key, v in known.items()}
    return Element("dl", ((Element("dt", key), Element("dd", text)) for key, text in shown.items()))
