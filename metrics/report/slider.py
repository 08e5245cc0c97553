"""The slider: a reader sets the loss that is acceptable, and the page names the fastest recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmspec.metrics.evaluation.results import short, short_speedup
from mmspec.metrics.report.choice import Scale, choose, relaxed_candidates, scale_of
from mmspec.metrics.report.grid import link, scroll
from mmspec.metrics.report.markup import Children, Element

Record = Mapping[str, Any]


def scales(rows: Sequence[Record], metrics: Sequence[str]) -> list[Scale]:
    """The metrics that the slider offers."""
    return [scale for metric in metrics if (scale := scale_of(rows, metric)) is not None]


def slider(rows: Sequence[Record], offered: Sequence[Scale]) -> list[Element]:
    """The section; empty if no metric can lose.

    The control is hidden until the script shows it; the table of fixed losses needs no script.
    """
    if not offered:
        return []
    first = next((i for i, scale in enumerate(offered) if scale.unit), 0)
    options = [
        Element(
            "option", scale.metric, value=scale.metric, selected="selected" if i == first else None,
            data_top=f"{scale.top:g}", data_step=f"{scale.step:g}", data_unit=scale.unit,
            data_factor=f"{scale.factor:g}", data_start=f"{scale.fixed[2] * scale.factor:g}",
        )
        for i, scale in enumerate(offered)
    ]  # fmt: skip
    relaxed = relaxed_candidates(rows)
    control = Element(
        "div",
        Element(
            "p",
            Element("label", "At most", for_="loss-number"),
            Element("input", type="number", id="loss-number", aria_describedby="unit"),
            Element("span", id="unit"),
            Element("label", "of", for_="metric"),
            Element("select", options, id="metric"),
            class_="ask",
        ),
        Element("input", type="range", id="loss", aria_label="largest acceptable loss"),
        Element(
            "p",
            Element("b", Element("a", id="chosen", href="#choice")),
            Element("span", id="gain"),
            Element("small", id="why"),
            class_="answer",
            role="status",
            aria_live="polite",
        ),
        Element(
            "p",
            Element("input", type="checkbox", id="together", checked="checked"),
            Element(
                "label",
                f"widen the intervals of the {relaxed} relaxed recipes so that all hold at once, since one is picked "
                "among them (Bonferroni)",
                for_="together",
            ),
            class_="option",
        ),
        id="choice",
        hidden="hidden",
    )
    return [
        Element("h2", "How much may be lost?", id="loss-heading"),
        Element(
            "p",
            "The fastest recipe whose interval excludes a larger loss against plain decoding. A recipe that keeps the "
            "distribution, and passed its check, loses nothing at any setting.",
        ),
        control,
        Element(
            "details",
            Element("summary", "The answers at fixed losses"),
            scroll(_fixed(rows, offered), "The fastest recipe at fixed losses"),
        ),
    ]


@dataclass(frozen=True)
class Answer:
    """The recipes to take at one acceptable loss.

    Attributes:
        scale: Of the metric.
        loss: The largest acceptable, in the metric itself.
        by_calls: The recipe with the most tokens per target call.
        by_clock: The recipe with the largest wall-clock speed-up; None if no recipe has one.
    """

    scale: Scale
    loss: float
    by_calls: Record
    by_clock: Record | None

    @property
    def allowed(self) -> str:
        """The loss in words, such as `2 points`."""
        value = f"{self.loss * self.scale.factor:g}"
        return f"{value} {self.scale.unit if value != '1' else self.scale.unit.removesuffix('s')}".strip()


def answers(rows: Sequence[Record], offered: Sequence[Scale]) -> list[Answer]:
    """For each metric and each of its fixed losses, the recipes to take; the intervals of all hold at once."""
    together = relaxed_candidates(rows)
    found = []
    for scale in offered:
        for loss in dict.fromkeys(scale.fixed):
            calls = choose(rows, scale.metric, loss, "tokens_per_call", together)
            clock = choose(rows, scale.metric, loss, "speedup", together)
            if calls is not None:
                found.append(Answer(scale, loss, calls, clock))
    return found


def _fixed(rows: Sequence[Record], offered: Sequence[Scale]) -> Element:
    heads = ["metric", "at most", "by target calls", "tokens / call", "by wall clock", "speed-up", "at batch"]
    lines = []
    for answer in answers(rows, offered):
        calls, clock = answer.by_calls, answer.by_clock
        cells: list[Children] = [answer.scale.metric, answer.allowed, link(calls["recipe"])]
        cells += [short(calls["speed"]["tokens_per_call"])]
        if clock is None:
            cells += ["-", "-", "-"]
        else:
            cells += [link(clock["recipe"]), short_speedup(clock["speed"], clock["batch"]), str(clock["batch"])]
        texts = (Element("td", cell, class_="text" if i in _TEXTS else None) for i, cell in enumerate(cells))
        lines.append(Element("tr", texts))
    columns = (Element("th", name, scope="col", class_="text" if i in _TEXTS else None) for i, name in enumerate(heads))
    return Element("table", Element("thead", Element("tr", columns)), Element("tbody", lines), class_="fixed")


_TEXTS = (0, 1, 2, 4)  # columns that are aligned left
