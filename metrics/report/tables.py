"""The numbers of a report as Markdown and as LaTeX, to be pasted into a page or a paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmspec.metrics.evaluation.results import aligned, guarantee, short, short_speedup
from mmspec.metrics.report.differences import compared, verdict
from mmspec.metrics.report.page import common_metrics, named_rows
from mmspec.metrics.report.runs import ReportRun, stopped_after
from mmspec.metrics.report.slider import answers, scales

Record = Mapping[str, Any]
Table = tuple[str, list[list[str]], int]  # what it shows, the lines with the head first, columns of text from the left

_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "\n": " ",
})  # fmt: skip


def markdown(runs: Sequence[ReportRun]) -> str:
    """The tables of one or several runs as Markdown."""
    parts = [f"# {_title(runs)}", *(_origin(run) for run in runs)]
    for caption, lines, texts in _tables(runs):
        cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
        parts += [f"**{caption}**", aligned(cells, texts)]
    return "\n\n".join(parts) + "\n"


def latex(runs: Sequence[ReportRun]) -> str:
    """The tables of one or several runs as LaTeX; needs the package booktabs."""
    parts = [f"% {line}".replace("\n", " ") for line in (_title(runs), *(_origin(run) for run in runs))]
    for caption, lines, texts in _tables(runs):
        head, *body = [" & ".join(_interval_in_latex(cell) for cell in line) + r" \\" for line in lines]
        columns = "l" * texts + "r" * (len(lines[0]) - texts)
        parts += [
            r"\begin{table}", r"\centering", rf"\caption{{{caption.translate(_LATEX)}}}",
            rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}",
            r"\end{table}",
        ]  # fmt: skip
    return "\n".join(parts) + "\n"


def _interval_in_latex(cell: str) -> str:
    """The text of a cell; the ends of an interval become small."""
    value, bracket, ends = cell.partition(" [")
    if bracket and ends.endswith("]"):
        return rf"{value.translate(_LATEX)} {{\scriptsize [{ends.translate(_LATEX)}}}"
    return cell.translate(_LATEX)


def _title(runs: Sequence[ReportRun]) -> str:
    models = " and ".join(dict.fromkeys(Path(run.record["config"]["model"]).name for run in runs))
    return f"{models}: quality against speed"


def _origin(run: ReportRun) -> str:
    """What the numbers of a run hold for, in one line."""
    config, environment = run.record["config"], run.record["environment"]
    names = ("temperature", "top_p", "min_p", "typical_p", "guidance_scale")
    set_ = [key for key in names if config.get(key) is not None]  # earlier versions wrote fewer
    where = [
        f"{len(config['prompts']):,} prompts x {len(config['seeds'])} seeds",
        f"batch {config['batch']}",
        *(f"{key} {config[key]:g}" for key in set_),
        str(environment.get("device") or config["device"]),
        *(f"{name} {environment[name]}" for name in ("mmspec", "torch") if environment.get(name)),
    ]
    own = f"{run.name + ': ' if run.name else ''}{', '.join(where)}. Intervals are 95 % intervals over prompts."
    return " ".join(filter(None, [own, stopped_after(run)]))


def _tables(runs: Sequence[ReportRun]) -> list[Table]:
    rows, metrics = named_rows(runs), common_metrics(runs)
    found = [_recipes(rows, metrics)]
    found += [_differences(run, named_rows([run])) for run in runs]
    offered = scales(rows, metrics)
    if offered:
        found.append(_choices(rows, metrics))
    return [table for table in found if len(table[1]) > 1]


def _recipes(rows: Sequence[Record], metrics: Sequence[str]) -> Table:
    lines = [["recipe", "exact?", "N", "tokens/call", "speed-up", "batch", "TV bound", *metrics]]
    for row in rows:
        speed = row["speed"]
        cells = [row["recipe"], guarantee(row), str(speed["samples"]), short(speed["tokens_per_call"])]
        cells += [
            short_speedup(speed, row["batch"]),
            str(row["batch"]),
            "-" if row["exact"] else f"{speed['tv_bound']:.3f}",
        ]
        lines.append([*cells, *(short(row["quality"][name]) for name in metrics)])
    return "Speed and quality by recipe.", lines, 2


def _differences(run: ReportRun, rows: Sequence[Record]) -> Table:
    family, metrics = compared(rows), list(rows[0]["quality"])
    lines = [["recipe", *metrics]]
    for row in rows:
        if any((row["recipe"], name) in family for name in metrics):
            cells = []
            for name in metrics:
                one, difference = family.get((row["recipe"], name)), row["quality"][name]["difference"]
                mark = "*" if one is not None and verdict(name, difference, one) else ""
                value, space, ends = short(difference).partition(" ")
                cells.append(f"{value}{mark}{space}{ends}")
            lines.append([row["recipe"], *cells])
    whose = f" of {run.name}" if run.name else ""
    caption = (
        f"Paired differences{whose} from plain decoding; * remains after Holm's correction for {len(family)} of them."
    )
    return caption, lines, 1


def _choices(rows: Sequence[Record], metrics: Sequence[str]) -> Table:
    lines = [["metric", "loss at most", "by target calls", "tokens/call", "by wall clock", "speed-up", "batch"]]
    for answer in answers(rows, scales(rows, metrics)):
        calls, clock = answer.by_calls, answer.by_clock
        cells = [answer.scale.metric, answer.allowed, calls["recipe"], short(calls["speed"]["tokens_per_call"])]
        if clock is None:
            cells += ["-", "-", "-"]
        else:
            cells += [clock["recipe"], short_speedup(clock["speed"], clock["batch"]), str(clock["batch"])]
        lines.append(cells)
    return (
        "The fastest recipe whose interval, widened for all relaxed recipes at once, excludes a larger loss.",
        lines,
        3,
    )
