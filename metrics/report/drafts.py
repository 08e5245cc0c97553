"""The acceptance of a recipe's drafts: tokens per target call, by slot of the window, and by place in the sample."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from PIL import Image

WIDTH, HEIGHT, FOOT = 220, 92, 16
# From nothing accepted to everything: dark blue through teal to yellow, perceptually even, in print too.
RAMP = np.array([(46, 30, 92), (42, 82, 139), (31, 138, 135), (109, 191, 98), (250, 222, 70)], dtype=np.float64)
STRIP = 512  # maximum number of columns of a map along time

Record = Mapping[str, Any]


def drafts(rows: Sequence[Record]) -> str:
    """A card for each recipe that drafts, and the color key of their maps; "" if no drafts were tested."""
    cards = [_card(row) for row in rows if any(rate is not None for rate in row["speed"]["acceptance"])]
    if not cards:
        return ""
    stops = ", ".join(f"rgb({r:.0f} {g:.0f} {b:.0f})" for r, g, b in RAMP)
    key = f'<p class="key">0 %<i style="background:linear-gradient(90deg, {stops})"></i>100 %</p>'
    return (
        "<h2>Drafts</h2><p>For each recipe: the number of tokens that a target call emitted; the share of the drafts "
        "tested at each slot of the window that was accepted; and, place by place, how often the token was an accepted "
        "draft.</p>"
        f'{key}<div class="cards">{"".join(cards)}</div>'
    )


def _card(row: Record) -> str:
    speed = row["speed"]
    calls = speed["gains"]
    shares = [count / max(sum(calls), 1) for count in calls[1:]]
    slots = [0.0 if rate is None else float(rate) for rate in speed["acceptance"]]
    mean = f"{speed['tokens_per_call']['value']:.2f} tokens per call"
    parts = [
        f"<h3>{escape(row['recipe'])}</h3><p>{mean}</p>",
        bars(shares, "share of calls by tokens", "tokens of a call") if shares else "",
        bars(slots, "acceptance by slot", "slot of the window", top=1.0) if slots else "",
        heat_map(speed["accepted_at"], speed["grid"]),
    ]
    return f'<div class="card">{"".join(parts)}</div>'


def bars(shares: Sequence[float], title: str, foot: str, top: float | None = None) -> str:
    """A bar chart as an SVG element.

    Args:
        shares: The bars, numbered from 1.
        title: Above the bars.
        foot: Below the axis.
        top: The value of the full height; None is the largest share.
    """
    high = top or max([*shares, 1e-9])
    slot = WIDTH / len(shares)
    room = HEIGHT - FOOT - 14
    parts = [f'<path class="grid" d="M0 {HEIGHT - FOOT}H{WIDTH}"/>']
    for i, share in enumerate(shares):
        height = share / high * room
        width = max(slot - 1.5, slot * 0.7)
        parts.append(
            f'<rect class="fill" x="{i * slot:.1f}" y="{HEIGHT - FOOT - height:.1f}" width="{width:.1f}" '
            f'height="{height:.1f}"><title>{i + 1}: {share:.1%}</title></rect>'
        )
    parts.append(f'<text x="0" y="10">{escape(title)}</text>')
    parts.append(f'<text x="{WIDTH}" y="10" text-anchor="end">{high:.0%}</text>')
    parts.append(f'<text x="0" y="{HEIGHT - 3}">1</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 3}" text-anchor="middle">{escape(foot)}</text>')
    parts.append(f'<text x="{WIDTH}" y="{HEIGHT - 3}" text-anchor="end">{len(shares)}</text>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'


def heat_map(shares: Sequence[float], grid: int | None) -> str:
    """A map of how often the token at each place was an accepted draft, as an HTML image.

    Args:
        shares: By position.
        grid: Tokens per row of the image; None draws a strip along time.
    """
    if not shares:
        return ""
    values = np.asarray(shares)
    if grid and len(values) % grid == 0:
        cells, kind = values.reshape(-1, grid), "grid-map"
    else:
        cells = np.array([[part.mean() for part in np.array_split(values, min(len(values), STRIP))]])
        kind = "strip-map"
    where = cells * (len(RAMP) - 1)
    low = np.minimum(where.astype(int), len(RAMP) - 2)
    pixels = RAMP[low] + (where - low)[..., None] * (RAMP[low + 1] - RAMP[low])
    data = io.BytesIO()
    Image.fromarray(pixels.round().astype(np.uint8)).save(data, format="PNG", optimize=True)
    code = base64.b64encode(data.getvalue()).decode()
    description = f"accepted drafts by place, {values.mean():.0%} on average"
    return f'<img class="{kind}" alt="{description}" title="{description}" src="data:image/png;base64,{code}"/>'
