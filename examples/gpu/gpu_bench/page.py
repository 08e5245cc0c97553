"""The page of a GPU day: what is slower than before, what ran, what failed, and all figures in tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gpu_bench.comparison import compared
from gpu_bench.records import records_of
from gpu_bench.regressions import Change, changes

from mmspec.metrics.report.markup import Children, Element, document
from mmspec.metrics.report.style import STYLE

Record = Mapping[str, Any]
TITLES = {
    "smoke": "Every recipe on tiny models, against the torch path",
    "tests": "Tests on the device",
    "models": "Published sizes, random weights",
    "embedded": "Models that ship with mmspec, end to end",
    "kernels": "What the device attains, verification kernels and attention",
    "predicted": "Predicted against measured",
}


def page(record: Record, last: Record) -> str:
    """The page of a record, compared with the last one, as HTML that is well-formed XML too."""
    environment, parts = record["environment"], record["parts"]
    title = f"mmspec on a GPU: {environment['device']}"
    rehearsal = record["settings"]["size"] == "tiny"
    header: list[Children] = [Element("h1", title), Element("p", _facts(record))]
    if rehearsal:
        header.append(
            Element("p", "A rehearsal at tiny sizes: it shows that every part runs; its figures mean nothing.")
        )
    body: list[Children] = [Element("header", header), _status(parts), *_changes(record, last)]
    for name, part in parts.items():
        rows = [one for one in part["records"] if "error" not in one]
        body.append([Element("h2", TITLES[name]), *_TABLES[name](record, rows), _errors(part["records"])])
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


def _changes(record: Record, last: Record) -> list[Children]:
    found = changes(record, last)
    before = f"Against {last['environment']['device']}, {last['date']}: {len(found)} cases of both records."
    lines = [(one.case, one.unit, _number(one.before), _number(one.now), f"{one.worse:.2f}") for one in found[:80]]
    names = ("case", "unit", "before", "now", "times worse")
    return [Element("h2", "Changes, the worst first"), Element("p", before), table(names, lines, text=(0, 1))]


def table_of_changes(found: Sequence[Change], record: Record, last: Record) -> str:
    """What regressed, as text."""
    worse = [one for one in found if one.regressed]
    devices = last["environment"]["device"], record["environment"]["device"]
    other = "" if devices[0] == devices[1] else f"; ANOTHER DEVICE: {devices[0]} then, {devices[1]} now"
    lines = [f"{len(worse)} of {len(found)} cases regressed since {last['date']}{other}"]
    for one in worse:
        lines.append(f"    {one.worse:6.2f}  {one.case}: {one.unit} {_number(one.before)} -> {_number(one.now)}")
    ratios = [one.ratio for one in compared(record)]
    if ratios:
        lines.append(f"measured over predicted: {min(ratios):.2f} to {max(ratios):.2f} over {len(ratios)} steps")
    return "\n".join(lines)


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _errors(records: Iterable[Record]) -> Element | None:
    failed = [one for one in records if "error" in one]
    if not failed:
        return None
    rows = [(", ".join(f"{key} {one[key]}" for key in one if key != "error"), one["error"]) for one in failed[:60]]
    return table(("could not be measured", "why"), rows, text=(0, 1))


def _smoke(record: Record, rows: Sequence[Record]) -> list[Children]:
    refused = {f"{one['recipe']} ({one['kind']}): {one['refused']}" for one in rows if "refused" in one}
    equal = sum("tokens" in one for one in rows)
    said = f"{equal} decodes gave the tokens of the torch path. Not decoded: {'; '.join(sorted(refused)) or 'none'}."
    return [Element("p", said)]


def _tests(record: Record, rows: Sequence[Record]) -> list[Children]:
    return [table(("passed", "failed", "skipped"), [(one["passed"], one["failed"], one["skipped"]) for one in rows])]


def _models(record: Record, rows: Sequence[Record]) -> list[Children]:
    decodes, steps = [one for one in rows if "recipe" in one], [one for one in rows if "recipe" not in one]
    plain = {(one["model"], one["rows"]): one["seconds_per_token"] for one in decodes if one["recipe"] == "plain"}
    lines = []
    for one in decodes:
        first = plain.get((one["model"], one["rows"]))
        gain = "" if first is None else f"{first / one['seconds_per_token']:.2f}"
        parts = ", ".join(f"{name} {1e6 * seconds:,.0f}" for name, seconds in one["by_part"].items())
        lines.append((
            one["model"], one["rows"], one["recipe"], _ms(one["seconds_per_call"]), _ms(one["host"]),
            f"{one['tokens_per_call']:.2f}", gain, _gib(one.get("memory")), parts,
        ))  # fmt: skip
    names = ("model", "rows", "recipe", "per call, ms", "besides the step, ms", "tokens per call", "over plain", "GiB",
             "by part, us")  # fmt: skip
    return [table(names, lines, text=(0, 2, 8)), _steps(steps)]


def _embedded(record: Record, rows: Sequence[Record]) -> list[Children]:
    plain = {(one["model"], one["batch"]): one["seconds_per_output"] for one in rows if one["recipe"] == "plain"}
    lines = []
    for one in rows:
        first = plain.get((one["model"], one["batch"]))
        gain = "" if first is None else f"{first / one['seconds_per_output']:.2f}"
        each = f"{one['seconds_per_output']:.4f}"
        lines.append((one["model"], one["batch"], one["recipe"], each, f"{one['tokens_per_call']:.2f}", gain))
    names = ("model", "prompts", "recipe", "seconds per image or second of speech", "tokens per call", "over plain")
    return [table(names, lines, text=(0, 2))]


def _speed(rows: Sequence[Record]) -> Element:
    lines = [
        (one["case"], f"{one['bytes_per_second'] / 1e9:,.0f} GB/s") if "bytes_per_second" in one
        else (one["case"], f"{one['flops_per_second'] / 1e12:,.1f} TFLOP/s")
        for one in rows
    ]  # fmt: skip
    return table(("what", "attained"), lines)


def _attention(rows: Sequence[Record]) -> Element:
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


def _verification(record: Record, rows: Sequence[Record]) -> Element:
    speed = records_of(record, "kernels")
    copy = next((one["bytes_per_second"] for one in speed if one.get("case") == "copy"), None)
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


def _steps(rows: Sequence[Record]) -> Element:
    plain = {(one["model"], one.get("part"), one["rows"]): _seconds(one) for one in rows if one["width"] == 1}
    lines = []
    for one in rows:
        first = plain.get((one["model"], one.get("part"), one["rows"]))
        cost = "" if first is None else f"{_seconds(one) / first:.2f}"
        name = f"{one['model']} {one.get('part', '')}".strip()
        cudnn = {None: "", True: "allowed", False: "off"}[one.get("cudnn")]
        times = _ms(one["device"]), _ms(one["wall"])
        lines.append((name, one["rows"], one["width"], one["end"], *times, cost, cudnn))
    names = ("model", "rows", "window", "slots", "captured, ms", "eager, ms", "over a plain step", "cuDNN's attention")
    return table(names, lines)


def _kernels(record: Record, rows: Sequence[Record]) -> list[Children]:
    return [
        _speed([one for one in rows if "case" in one]),
        _verification(record, [one for one in rows if "kernel" in one]),
        _attention([one for one in rows if "backend" in one]),
    ]


def _predicted(record: Record, rows: Sequence[Record]) -> list[Children]:
    lines = [
        (one.model, one.rows, one.width, _ms(one.predicted), _ms(one.measured), f"{one.ratio:.2f}",
         "captured" if one.captured else "eager")
        for one in compared(record)
    ]  # fmt: skip
    names = ("model", "rows", "window", "predicted, ms", "measured, ms", "measured / predicted", "")
    return [table(names, lines, text=(0, 6))]


def _seconds(one: Record) -> float:
    return float(one["wall"] if one["device"] is None else one["device"])


def _us(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e6 * seconds:,.1f}"


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:,.3f}"


def _gib(size: float | None) -> str:
    return "" if size is None else f"{size / 2**30:.1f}"


def table(names: Sequence[str], rows: Iterable[Sequence[object]], text: Sequence[int] = (0,)) -> Element:
    """A table that scrolls; the columns `text` are aligned to the left."""

    def cell(tag: str, index: int, value: object) -> Element:
        return Element(tag, str(value), class_="text" if index in text else None)

    head = Element("thead", Element("tr", [cell("th", i, name) for i, name in enumerate(names)]))
    body = Element("tbody", [Element("tr", [cell("td", i, value) for i, value in enumerate(row)]) for row in rows])
    return Element("div", Element("table", head, body), class_="scroll")


_TABLES: dict[str, Callable[[Record, Sequence[Record]], list[Children]]] = {
    "smoke": _smoke, "tests": _tests, "models": _models, "embedded": _embedded, "kernels": _kernels,
    "predicted": _predicted,
}  # fmt: skip
