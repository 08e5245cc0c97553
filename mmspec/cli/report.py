"""`mmspec report`: the report page of existing results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Results folders of `mmspec eval`.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", show_default=False, help="Write one page of all runs to this file."),
    ] = None,
) -> None:
    """Write report.html and results.csv again from results.json and the samples, and print the path of each page.

    Several folders also get one page that compares them, comparison.html unless -o names another.
    """
    from mmspec.files import check_writable
    from mmspec.locks import locked
    from mmspec.metrics.evaluation.results import read_results, write_csv
    from mmspec.metrics.report.page import write_page, write_report
    from mmspec.metrics.report.runs import ReportRun

    together = output or (Path("comparison.html") if len(folders) > 1 else None)
    if together is not None:
        check_writable(together, "-o/--output")
    records = [(folder, read_results(folder)) for folder in folders]
    for folder, record in records:
        with locked(folder, "DIR"):
            write_csv(record, folder)
            print(write_report(record, folder))
    if together is not None:
        names = [folder.name for folder in folders]
        unique = len(set(names)) == len(names)  # else the full paths distinguish them
        runs = [ReportRun(folder.name if unique else str(folder), record, folder) for folder, record in records]
        print(write_page(runs if len(runs) > 1 else [ReportRun("", *records[0][::-1])], together))
