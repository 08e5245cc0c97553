"""The page of `mmspec bench gpu`: what ran, what failed, and all figures in tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mmspec.metrics.bench.gpu.comparison import compared, records_of
from mmspec.metrics.report.markup import Children, Element, document
from mmspec.metrics.report.style import STYLE

Record = Mapping[str, Any]
TITLES = {
    "speed": "What the device attains",
    "tests": "Tests on the device",
    "attention": "Attention backends",
    "kernels": "Verification kernels",
    "steps": "Steps of published sizes, random weights",
    "loop": "Decoding: all that lies between the calls of a model",
    "predicted": "Predicted against measured",
}


def gpu_page(record: Record) -> str:
    """The page of a record as HTML that is well-formed XML too."""
    environment, parts = record["environment"], record["parts"]
    title = f"mmspec bench gpu: {environment['device']}"
    rehearsal = record["settings"]["size"] == "tiny"
    header: list[Children] = [Element("h1", title), Element("p", _facts(record))]
    if rehearsal:
        header.append(
            Element("p", "A rehearsal at tiny sizes: it shows that every part runs; its figures mean nothing.")
        )
    body: list[Children] = [Element("header", header), _status(parts)]
    for name, part in parts.items():
        rows = [one for one in part["records"] if "error" not in one]
        made = _TABLES[name](record, rows) if rows or name == "predicted" else None
        body.append([Element("h2", TITLES[name]), made, _errors(part["records"])])
    return document(title, STYLE, body)


def _facts(record: Record) -> str:
    environment = record["environment"]
    names = ("torch", "triton", "transformers", "cuda", "python", "mmspec")
    versions = ", ".join(f"{name} {environment[name]}" for name in names if environment.get(name))
    return f"{record['date']}; {versions}."


def _status(parts: Mapping[str, Record]) -> Element:
    rows = [
        (
            TITLES[name], part["status"], f"{part['seconds']:.0f} s",
            f"{len(part['records'])} records, {sum('error' in one for one in part['records'])} with an error",
            part["error"] or "",
        )
        for name, part in parts.items()
    ]  # fmt: skip
    return table(("part", "status", "time", "records", "why"), rows, text=(0, 1, 3, 4))


def _errors(records: Iterable[Record]) -> Element | None:
    failed = [one for one in records if "error" in one]
    if not failed:
        return None
    rows = [(", ".join(f"{key} {one[key]}" for key in one if key != "error"), one["error"]) for one in failed[:60]]
    return table(("could not be measured", "why"), rows, text=(0, 1))


def _speed(record: Record, rows: Sequence[Record]) -> Element:
    found = {one["case"]: one for one in rows}
    lines = []
    if "copy" in found:
        lines.append(("copy, read and written", f"{found['copy']['bytes_per_second'] / 1e9:,.0f} GB/s"))
    if "product" in found:
        lines.append(("matrix product", f"{found['product']['flops_per_second'] / 1e12:,.1f} TFLOP/s"))
    return table(("what", "attained"), lines)


def _tests(record: Record, rows: Sequence[Record]) -> Element:
    return table(("passed", "failed", "skipped"), [(one["passed"], one["failed"], one["skipped"]) for one in rows])


def _attention(record: Record, rows: Sequence[Record]) -> Element:
    lines = [
        (
            one["backend"], one.get("chosen", ""), f"{one['heads']}/{one['key_heads']} x {one['head_dim']}",
            one["rows"], one["width"], _us(one["first_call"]), _us(one["slowest_first_call"]), _us(one["device"]),
            _us(one["wall"]),
        )
        for one in rows
    ]  # fmt: skip
    names = ("backend", "takes", "heads", "rows", "window", "first call of a length, us", "slowest", "device, us",
             "wall, us")  # fmt: skip
    return table(names, lines, text=(0, 1, 2))


def _kernels(record: Record, rows: Sequence[Record]) -> Element:
    copy = next((one["bytes_per_second"] for one in records_of(record, "speed") if one["case"] == "copy"), None)
    lines = [
        (
            one["kernel"], one["cut"], f"{one['rows']} x {one['width']} x {one['vocab_size']}",
            "guided" if one["guided"] else "", _us(one["device"]), _us(one["device_p90"]), _us(one["wall"]),
            f"{one['bandwidth'] / 1e9:,.0f}", "" if copy is None else f"{one['bandwidth'] / copy:.1%}",
        )
        for one in rows
    ]  # fmt: skip
    names = ("kernel", "cut", "rows x window x tokens", "", "device, us", "90 %", "wall, us", "GB/s", "of a copy")
    return table(names, lines, text=(0, 1, 2, 3))


def _steps(record: Record, rows: Sequence[Record]) -> Element:
    plain = {(one["model"], one.get("part"), one["rows"]): _seconds(one) for one in rows if one["width"] == 1}
    lines = []
    for one in rows:
        first = plain.get((one["model"], one.get("part"), one["rows"]))
        cost = "" if first is None else f"{_seconds(one) / first:.2f}"
        name = f"{one['model']} {one.get('part', '')}".strip()
        lines.append((name, one["rows"], one["width"], _ms(one["device"]), _ms(one["wall"]), cost))
    names = ("model", "rows", "window", "captured, ms", "eager, ms", "over a plain step")
    return table(names, lines)


def _loop(record: Record, rows: Sequence[Record]) -> Element:
    steps = {
        (one["model"], one["width"]): one["device"]
        for one in records_of(record, "steps")
        if one["rows"] == 1 and one.get("part") is None
    }
    lines = []
    for one in rows:
        width = int(one["recipe"].partition("window=")[2] or 1)
        step = steps.get((one["model"], width))
        host = "" if step is None else f"{1e6 * (one['seconds_per_call'] - step):,.0f}"
        parts = ", ".join(f"{name} {1e6 * seconds:,.0f}" for name, seconds in one["by_part"].items())
        lines.append((one["model"], one["recipe"], one["calls"], _ms(one["seconds_per_call"]), host, parts))
    names = ("model", "recipe", "calls", "per call, ms", "more than the step, us", "by part, us")
    return table(names, lines, text=(0, 1, 5))


def _predicted(record: Record, rows: Sequence[Record]) -> Element | None:
    lines = [
        (one.model, one.rows, one.width, _ms(one.predicted), _ms(one.measured), f"{one.ratio:.2f}",
         "captured" if one.captured else "eager")
        for one in compared(record)
    ]  # fmt: skip
    names = ("model", "rows", "window", "predicted, ms", "measured, ms", "measured / predicted", "")
    return table(names, lines, text=(0, 6)) if lines else None


def _seconds(one: Record) -> float:
    return float(one["wall"] if one["device"] is None else one["device"])


def _us(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e6 * seconds:,.1f}"


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:,.3f}"


def table(names: Sequence[str], rows: Iterable[Sequence[object]], text: Sequence[int] = (0,)) -> Element:
    """A table that scrolls; the columns `text` are aligned to the left."""

    def cell(tag: str, index: int, value: object) -> Element:
        return Element(tag, str(value), class_="text" if index in text else None)

    head = Element("thead", Element("tr", [cell("th", i, name) for i, name in enumerate(names)]))
    body = Element("tbody", [Element("tr", [cell("td", i, value) for i, value in enumerate(row)]) for row in rows])
    return Element("div", Element("table", head, body), class_="scroll")


_TABLES: dict[str, Callable[[Record, Sequence[Record]], Element | None]] = {
    "speed": _speed, "tests": _tests, "attention": _attention, "kernels": _kernels, "steps": _steps, "loop": _loop,
    "predicted": _predicted,
}  # fmt: skip
