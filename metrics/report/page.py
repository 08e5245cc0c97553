"""The report page: curves, tables and samples side by side, of one run or of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from mmspec.files.folders import replacing_inside
from mmspec.metrics.report.curves import charts
from mmspec.metrics.report.differences import differences
from mmspec.metrics.report.drafts import drafts
from mmspec.metrics.report.grid import definitions
from mmspec.metrics.report.losses import prompts_that_lose
from mmspec.metrics.report.markup import Children, Element, document
from mmspec.metrics.report.places import places
from mmspec.metrics.report.recipes import recipes_table
from mmspec.metrics.report.runs import ReportRun, between_runs, stopped_after
from mmspec.metrics.report.samples import Budget, samples, viewer
from mmspec.metrics.report.slider import scales, slider
from mmspec.metrics.report.style import STYLE
from mmspec.metrics.report.timing import timing

FILE = "report.html"

Record = Mapping[str, Any]


@cache
def script() -> str:
    """The page's script."""
    return Path(__file__).with_name("page.js").read_text(encoding="utf-8")


def write_report(record: Record, folder: Path) -> Path:
    """Writes the self-contained page of a results folder and returns its path."""
    with replacing_inside(folder, FILE) as partial:
        partial.write_text(page([ReportRun("", record, folder)]), encoding="utf-8")
    return folder / FILE


def page(runs: Sequence[ReportRun], notice: Children = None) -> str:
    """The page as HTML that is well-formed XML too; with several runs, recipes are prefixed with the name of theirs.

    Args:
        runs: What to show.
        notice: Stands below the title, such as the progress of a run that has not ended.
    """
    rows = named_rows(runs)
    models = " and ".join(dict.fromkeys(Path(run.record["config"]["model"]).name for run in runs))
    metrics = common_metrics(runs)
    offered = scales(rows, metrics)
    budget = Budget()
    sides = [[_head(run), samples(run.record["config"], run.folder, budget)] for run in runs]
    lost = [_named(run, prompts_that_lose(run.record, run.folder, budget)) for run in runs]
    sections: dict[str, Children] = {
        "loss": slider(rows, offered),
        "curves": charts(rows, metrics),
        "recipes": [
            Element("h2", "Recipes", id="recipes"),
            Element("p", "Click a head to sort; the name of a recipe is a link to its row, to be passed on."),
            recipes_table(rows, [scale.metric for scale in offered]),
        ],
        "differences": [differences(_own(run), run.name) for run in runs],
        "runs": between_runs(runs),
        "time": timing(rows),
        "drafts": [drafts(rows), [_named(run, places(run.record, run.folder)) for run in runs]],
        "losses": lost,
        "samples": sides,
        "facts": [_facts(run) for run in runs],
    }
    shown = {key: section for key, section in sections.items() if _filled(section)}
    title = f"{models}: quality against speed"
    body: list[Children] = [
        Element("a", "Skip to the content", href="#main", class_="skip"),
        Element(
            "header",
            Element("h1", title),
            [Element("p", _summary(run)) for run in runs],
            [Element("p", text, class_="notice") for run in runs if (text := stopped_after(run))],
            notice,
            Element("nav", (Element("a", _TITLES[key], href=f"#{key}-part") for key in shown), aria_label="Parts"),
        ),
        Element(
            "main",
            (Element("section", part, id=f"{key}-part", aria_label=_TITLES[key]) for key, part in shown.items()),
            id="main",
        ),
        viewer(),
    ]
    return document(f"mmspec eval: {models}", STYLE, body, script())


_TITLES = {
    "loss": "How much may be lost?", "curves": "Curves", "recipes": "Recipes", "differences": "Differences",
    "runs": "Between runs", "time": "Time", "drafts": "Drafts", "losses": "Which prompts lose",
    "samples": "Samples", "facts": "Configuration",
}  # fmt: skip


def _filled(section: Children) -> bool:
    """Whether a part of the page holds an element."""
    if section is None or isinstance(section, (Element, str)):
        return section is not None
    return any(_filled(one) for one in section)


def named_rows(runs: Sequence[ReportRun]) -> list[Record]:
    """The recipes of all runs, each with the name of its run, "" for the only one, and its batch size."""
    return [row for run in runs for row in _own(run)]


def _own(run: ReportRun) -> list[Record]:
    prefix = f"{run.name}: " if run.name else ""
    batch = run.record["config"]["batch"]
    return [
        {**row, "recipe": f"{prefix}{row['recipe']}", "run": run.name, "batch": batch} for row in run.record["rows"]
    ]


def common_metrics(runs: Sequence[ReportRun]) -> list[str]:
    """The metrics that every run has."""
    return [n for n in runs[0].record["rows"][0]["quality"] if all(n in r.record["rows"][0]["quality"] for r in runs)]


def _named(run: ReportRun, parts: list[Element]) -> list[Element | None]:
    """A part of the page of one run under the run's name."""
    return [_head(run), *parts] if parts else []


def _head(run: ReportRun) -> Element | None:
    return Element("h2", run.name) if run.name else None


def _summary(run: ReportRun) -> str:
    config, environment = run.record["config"], run.record["environment"]
    sizes = [
        f"{len(config['prompts']):,} prompt{'s' if len(config['prompts']) > 1 else ''}",
        f"{len(config['seeds'])} seed{'s' if len(config['seeds']) > 1 else ''} each",
        f"{len(run.record['rows'])} recipes",
        f"{config['batch']} per call on {environment.get('device') or config['device']}",
        *([f"mmspec {environment['mmspec']}"] if environment.get("mmspec") else []),
    ]
    where = "plain decoding with other seeds" if config["reference"] == "plain" else config["reference"]
    skipped = len(run.record["skipped"])
    lost = f" {skipped} file{'s were' if skipped > 1 else ' was'} left out." if skipped else ""
    return f"{run.name + ': ' if run.name else ''}{', '.join(sizes)}. Distances are measured to {where}.{lost}"


def _facts(run: ReportRun) -> list[Element | None]:
    config, environment = run.record["config"], run.record["environment"]
    return [
        _head(run),
        Element("h2", "Configuration"),
        definitions({key: value for key, value in config.items() if key != "prompts"}),
        Element("h2", "Environment"),
        definitions(environment),
    ]
