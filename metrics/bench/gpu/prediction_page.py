"""The page of `mmspec bench predict`: by model a chart and a table of predicted gains, headed as predicted."""

from __future__ import annotations

from collections.abc import Mapping

from mmspec.metrics.bench.gpu.devices import Device
from mmspec.metrics.bench.gpu.page import table
from mmspec.metrics.bench.gpu.prediction import Prediction
from mmspec.metrics.report.chart import Point, chart
from mmspec.metrics.report.markup import Children, Element, document
from mmspec.metrics.report.style import STYLE

NOTE = (
    "Predicted, not measured: kernels, bytes and operations of each call are counted on fake tensors, and timed by the "
    "figures of the device below. No figure was fitted to a device."
)


def prediction_page(device: Device, predictions: Mapping[str, Prediction], acceptance: str) -> str:
    """The page as HTML that is well-formed XML too.

    Args:
        device: Of the predictions.
        predictions: By model.
        acceptance: How drafts are accepted, in words.
    """
    title = f"Predicted gain of windows: {device.title}"
    facts = (
        f"{device.bandwidth / 1e12:.2f} TB/s by a copy, {device.flops / 1e12:.0f} TFLOP/s by a product, "
        f"{1e6 * device.kernel:.1f} us per kernel of a graph: {device.source}. Acceptance by slot: {acceptance}."
    )
    body: list[Children] = [Element("header", Element("h1", title), Element("p", NOTE), Element("p", facts))]
    charts = [Element("div", Element("h3", name), _chart(prediction)) for name, prediction in predictions.items()]
    body.append(Element("div", charts, class_="charts"))
    for name, prediction in predictions.items():
        body.append([Element("h2", name), Element("p", ending(prediction)), gains_table(prediction)])
    return document(title, STYLE, body)


def ending(prediction: Prediction) -> str:
    """Where windows stop paying, in a sentence."""
    last = prediction.ends_at()
    if last is None:
        most = max(gain.rows for gain in prediction.gains)
        return f"Some window pays at every batch, up to {most} rows."
    return f"No window pays from {last} rows on."


def gains_table(prediction: Prediction) -> Element:
    """Predicted milliseconds per call and speed-up, windows by batch."""
    rows = sorted({gain.rows for gain in prediction.gains})
    widths = sorted({gain.width for gain in prediction.gains})
    gains = {(gain.rows, gain.width): gain for gain in prediction.gains}
    steps = {(step.rows, step.width): step for step in prediction.steps}
    lines = [
        (
            width, f"{gains[rows[0], width].tokens:.2f}", steps[rows[0], width].launches,
            *(f"{1e3 * steps[count, width].seconds:.2f}" for count in rows),
            *(f"{gains[count, width].speedup:.2f}" for count in rows),
        )
        for width in widths
    ]  # fmt: skip
    names = (
        "window",
        "tokens per call",
        "kernels",
        *(f"ms, {n} rows" for n in rows),
        *(f"gain, {n} rows" for n in rows),
    )
    return table(names, lines)


def _chart(prediction: Prediction) -> Element:
    points = [
        Point(
            f"{gain.rows} rows, window {gain.width}: {gain.speedup:.2f}", f"{gain.rows} rows",
            (gain.width,) * 3, (gain.speedup,) * 3, mark=str(gain.width) if gain.rows == 1 else "",
        )
        for gain in prediction.gains
    ]  # fmt: skip
    return chart(points, "predicted speed-up", None, "tokens in a window")
