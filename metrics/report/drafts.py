"""The acceptance of a recipe's drafts: tokens per target call, by slot of the window, and by place in the sample."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from mmspec.metrics.report.grid import key_of, link
from mmspec.metrics.report.markup import Element, image
from mmspec.metrics.report.style import RAMP

WIDTH, HEIGHT, FOOT = 220, 92, 16
STRIP = 512  # maximum number of columns of a map along time, and of bars

Record = Mapping[str, Any]


def drafts(rows: Sequence[Record]) -> list[Element]:
    """A card for each recipe that drafts, and the color key of their maps; empty if no drafts were tested."""
    cards = [_card(row) for row in rows if any(rate is not None for rate in row["speed"]["acceptance"])]
    if not cards:
        return []
    return [
        Element("h2", "Drafts", id="drafts"),
        Element(
            "p",
            "For each recipe: the number of tokens that a target call emitted; the share of the drafts tested at each "
            "slot of the window that was accepted; and, place by place, how often the token was an accepted draft.",
        ),
        Element("p", "0 %", Element("i"), "100 %", class_="key"),
        Element("div", cards, class_="cards"),
    ]


def _card(row: Record) -> Element:
    speed = row["speed"]
    calls = speed["gains"]
    shares = [count / max(sum(calls), 1) for count in calls[1:]]
    slots = [0.0 if rate is None else float(rate) for rate in speed["acceptance"]]
    return Element(
        "div",
        Element("h3", link(row["recipe"])),
        Element("p", f"{speed['tokens_per_call']['value']:.2f} tokens per call"),
        bars(shares, "share of calls by tokens", "tokens of a call") if shares else None,
        bars(slots, "acceptance by slot", "slot of the window", top=1.0) if slots else None,
        heat_map(speed["accepted_at"], speed["grid"]) if speed["accepted_at"] else None,
        class_="card",
        data_recipe=key_of(row["recipe"]),
    )


def bars(shares: Sequence[float], title: str, foot: str, top: float | None = None) -> Element:
    """A bar chart as an SVG element.

    Args:
        shares: The bars, numbered from 1.
        title: Above the bars.
        foot: Below the axis.
        top: The value of the full height; None is the largest share.
    """
    high = top or max([*shares, 1e-9])
    slot = WIDTH / min(len(shares), STRIP)
    room = HEIGHT - FOOT - 14
    width = f"{max(slot - 1.5, slot * 0.7):.1f}"
    parts = [Element("path", class_="grid", d=f"M0 {HEIGHT - FOOT}H{WIDTH}")]
    for i, share in enumerate(shares[:STRIP]):
        height = share / high * room
        parts.append(
            Element(
                "rect",
                Element("title", f"{i + 1}: {share:.1%}"),
                class_="fill",
                x=f"{i * slot:.1f}",
                y=f"{HEIGHT - FOOT - height:.1f}",
                width=width,
                height=f"{height:.1f}",
            )
        )
    parts += [
        Element("text", title, x=0, y=10),
        Element("text", f"{high:.0%}", x=WIDTH, y=10, text_anchor="end"),
        Element("text", "1", x=0, y=HEIGHT - 3),
        Element("text", foot, x=WIDTH / 2, y=HEIGHT - 3, text_anchor="middle"),
        Element("text", str(min(len(shares), STRIP)), x=WIDTH, y=HEIGHT - 3, text_anchor="end"),
    ]
    return Element("svg", parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=title)


def heat_map(shares: Sequence[float], grid: int | None) -> Element:
    """A map of how often the token at each place was an accepted draft.

    Args:
        shares: By position, at least one.
        grid: Tokens per row of the image; None draws a strip along time.
    """
    values, ramp = np.asarray(shares, dtype=np.float64), np.array(RAMP, dtype=np.float64)
    if grid and len(values) % grid == 0:
        cells, kind = values.reshape(-1, grid), "grid-map"
    else:
        cells = np.array([[part.mean() for part in np.array_split(values, min(len(values), STRIP))]])
        kind = "strip-map"
    where = cells * (len(ramp) - 1)
    low = np.minimum(where.astype(int), len(ramp) - 2)
    pixels = ramp[low] + (where - low)[..., None] * (ramp[low + 1] - ramp[low])
    data = io.BytesIO()
    Image.fromarray(pixels.round().astype(np.uint8)).save(data, format="PNG", optimize=True)
    description = f"accepted drafts by place, {values.mean():.0%} on average"
    return image(data.getvalue(), description, class_=kind, title=description)
