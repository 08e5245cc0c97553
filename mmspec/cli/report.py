"""`mmspec report`: the report page of existing results, its tables, and an image of it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmspec.errors import ArgumentError

if TYPE_CHECKING:
    from mmspec.metrics.report.runs import ReportRun


class Format(StrEnum):
    """What `mmspec report` writes."""

    HTML = "html"
    MARKDOWN = "md"
    LATEX = "latex"
    SVG = "svg"
    PNG = "png"


ENDINGS = {
    ".html": Format.HTML,
    ".md": Format.MARKDOWN,
    ".tex": Format.LATEX,
    ".svg": Format.SVG,
    ".png": Format.PNG,
}


class Axis(StrEnum):
    """The measure of speed on an image."""

    SPEEDUP = "speedup"
    TOKENS_PER_CALL = "tokens_per_call"


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="Results folders of `mmspec eval`.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", show_default=False, help="Write one page, table or image of all runs here."),
    ] = None,
    form: Annotated[
        Format,
        typer.Option(
            "--format", help="The page, tables for a README or a paper (on stdout without -o), or an image for a talk."
        ),
    ] = Format.HTML,
    metric: Annotated[
        str | None, typer.Option(show_default="the first that can lose", help="Of the image: its vertical axis.")
    ] = None,
    axis: Annotated[
        Axis | None,
        typer.Option(
            show_default="speedup, or tokens_per_call if a recipe was timed in one call only",
            help="Of the image: its horizontal axis.",
        ),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Show the page of one running or finished evaluation at a local address.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of --serve; 0 takes a free one.")] = 8321,
) -> None:
    """Write report.html and results.csv again from results.json and the samples, and print the path of each page.

    Several folders also get one page that compares them, comparison.html unless -o names another. With --serve nothing
    is written: the page follows the evaluation, and no other machine can reach it.
    """
    if serve:
        if len(folders) > 1:
            raise ArgumentError(f"--serve shows the page of one folder, not of {len(folders)}")
        from mmspec.metrics.report.server import serve_report

        serve_report(folders[0], port, lambda address: print(address, flush=True))
        return
    from mmspec.files import check_writable
    from mmspec.files.locks import locked

    if output is not None and output.suffix.lower() in ENDINGS and form is not ENDINGS[output.suffix.lower()]:
        other = ENDINGS[output.suffix.lower()].value
        raise ArgumentError(
            f"-o/--output: '{output}' is the name of another format than {form.value}; add --format {other}"
        )
    from mmspec.metrics.evaluation.results import read_results, write_csv
    from mmspec.metrics.report.page import page, write_report

    together = output or (Path("comparison.html") if len(folders) > 1 and form is Format.HTML else None)
    if together is not None:
        check_writable(together, "-o/--output")
    records = [(folder, read_results(folder)) for folder in folders]
    names = [folder.name for folder in folders]
    unique = len(set(names)) == len(names)  # else the full paths distinguish them
    from mmspec.metrics.report.runs import ReportRun

    runs = [ReportRun(folder.name if unique else str(folder), record, folder) for folder, record in records]
    if len(runs) == 1:
        runs = [ReportRun("", *records[0][::-1])]
    if form in (Format.SVG, Format.PNG):
        print(_image(runs, output, form, metric, axis))
    elif form is not Format.HTML:
        from mmspec.metrics.report.tables import latex, markdown

        text = markdown(runs) if form is Format.MARKDOWN else latex(runs)
        if together is None:
            print(text, end="")
        else:
            with _writing(output, together) as partial:
                partial.write_text(text, encoding="utf-8")
            print(together)
    else:
        for folder, record in records:
            with locked(folder, "DIR"):
                write_csv(record, folder)
                print(write_report(record, folder))
        if together is not None:
            with _writing(output, together) as partial:
                partial.write_text(page(runs), encoding="utf-8")
            print(together)


def _image(runs: list[ReportRun], output: Path | None, form: Format, metric: str | None, axis: Axis | None) -> Path:
    from mmspec.metrics.report.summary import summary

    own = runs[0].folder / "summary" if len(runs) == 1 else Path("comparison")
    path = output or own.with_suffix(f".{form.value}")
    if path.suffix.lower() != f".{form.value}":
        raise ArgumentError(f"-o/--output: '{path}' must end in .{form.value}, the format asked for")
    content = summary(runs, metric, axis and axis.value).encode(path.suffix)
    with _writing(output, path) as partial:
        partial.write_bytes(content)
    return path


def _writing(output: Path | None, path: Path) -> AbstractContextManager[Path]:
    """Replaces the file that the user named, or one whose name is computed, which is not followed if it is a link."""
    from mmspec.files import replacing
    from mmspec.files.folders import replacing_inside

    return replacing_inside(path.parent, path.name) if output is None else replacing(output)
