"""`mmspec report`: the page of results that are there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Results folders of `mmspec eval`.")],
) -> None:
    """Write report.html, and results.csv, anew from results.json and the pictures. Prints the path of each page."""
    from mmspec.metrics.evaluation.results import read_results, write_results
    from mmspec.metrics.report.page import write_report

    records = [(folder, read_results(folder)) for folder in folders]
    for folder, record in records:
        write_results(record, folder)
        print(write_report(record, folder))
