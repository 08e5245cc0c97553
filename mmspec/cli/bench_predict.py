"""`mmspec bench predict`: what windows should gain on a device that is not at hand."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli.options import Json
from mmspec.errors import ArgumentError
from mmspec.files import STDOUT, check_writable, replacing
from mmspec.files.documents import read_json

SCHEMA_VERSION = 1
Sizes = Annotated[str, typer.Option(help="Separated by commas.")]


def bench_predict(
    device: Annotated[str, typer.Option(help="h100, h200, a100, l4 or 4090.")] = "h100",
    model: Annotated[
        str, typer.Option("-m", "--model", help="Published sizes such as llamagen-xl or csm, by commas, or all.")
    ] = "llamagen-xl",
    acceptance: Annotated[
        str, typer.Option(help="Rates of the slots of a window, or a JSON record of mmspec bench or mmspec eval.")
    ] = "0.7",
    recipe: Annotated[
        str | None, typer.Option(show_default="the first with drafts", help="The row of that record.")
    ] = None,
    results: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDERS",
            show_default=False,
            help="Folders of mmspec eval, by commas: the gain of each of their recipes, from its own window and its "
            "measured tokens per call, instead of --acceptance, --recipe and --window.",
        ),
    ] = None,
    batch: Sizes = "1,8,64",
    window: Sizes = "2,4,8,16,32",
    measured: Annotated[
        Path | None,
        typer.Option(show_default=False, help="Print predicted against measured of this gpu.json instead."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", show_default=False, help="Write an .html page or a .json record, or - for stdout."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict the time per call and the gain over captured plain decoding, from counted kernels, bytes and operations.

    Nothing runs on a device. With --measured the command compares a record of `mmspec bench gpu` with its predictions.
    """
    if measured is not None:
        return _compare(measured, as_json)
    if output == STDOUT:
        output, as_json = None, True
    if output is not None:
        allowed = (".json",) if results is not None else (".html", ".json")
        if output.suffix not in allowed:
            raise ArgumentError(f"-o/--output: {str(output)!r} must end in {' or '.join(allowed)}")
        check_writable(output, "-o/--output")

    from mmspec.metrics.bench.gpu.acceptance import as_text, read_acceptance, read_rows
    from mmspec.metrics.bench.gpu.devices import device_named
    from mmspec.metrics.bench.gpu.prediction import predict, tokens_per_window
    from mmspec.metrics.bench.gpu.prediction_page import NOTE, ending, prediction_page
    from mmspec.metrics.bench.gpu.published import PUBLISHED, published

    chosen, names = device_named(device), list(PUBLISHED) if model == "all" else model.split(",")
    models = {name: published(name) for name in names}
    rows = _sizes("--batch", batch)
    if results is not None:
        return _of_recipes(read_rows(results), models, chosen, rows, output, as_json)
    rates, widths = read_acceptance(acceptance, recipe), _sizes("--window", window)
    windows = [(width, tokens_per_window(rates, width)) for width in widths if width > 1]
    found = {name: predict(one, chosen, rows, windows) for name, one in models.items()}
    record = {
        "schema_version": SCHEMA_VERSION,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "predicted": True,
        "device": asdict(chosen),
        "acceptance": rates,
        "models": {name: asdict(one) | {"ends_at": one.ends_at()} for name, one in found.items()},
    }
    if output is not None:
        page = (
            prediction_page(chosen, found, as_text(rates)) if output.suffix == ".html" else json.dumps(record, indent=1)
        )
        with replacing(output) as partial:
            partial.write_text(page + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(record))
        return
    print(f"{NOTE}\n{chosen.title}; acceptance by slot: {as_text(rates)}\n")
    print(f"{'model':<16}{'rows':>5}{'window':>8}{'tokens':>8}{'kernels':>9}{'ms/call':>9}{'eager':>9}{'gain':>7}")
    for name, one in found.items():
        for step, gain in zip(one.steps, one.gains, strict=True):
            times = f"{1e3 * step.seconds:9.2f}{1e3 * step.eager:9.2f}"
            print(
                f"{name:<16}{step.rows:>5}{step.width:>8}{gain.tokens:8.2f}{step.launches:>9}{times}{gain.speedup:7.2f}"
            )
        print(f"{ending(one)}\n")


def _of_recipes(
    measured: dict[Any, float],
    models: dict[str, Any],
    device: Any,
    rows: list[int],
    output: Path | None,
    as_json: bool,
) -> None:
    """Prints the predicted gain of recipes at the tokens per call that were measured."""
    from mmspec.metrics.bench.gpu.acceptance import drafts_without_network
    from mmspec.metrics.bench.gpu.outer_passes import outer_seconds
    from mmspec.metrics.bench.gpu.prediction import predict
    from mmspec.metrics.bench.gpu.prediction_page import NOTE

    windows = [(one.recipe.window, tokens) for one, tokens in measured.items()]
    refreshed = {one: one.passes for one in measured if one.passes is not None}
    found = list[dict[str, Any]]()
    for name, model in models.items():
        gains = predict(model, device, rows, windows).gains
        for count in rows:
            plain, *others = (gain for gain in gains if gain.rows == count)
            asked = [(one.recipe.window, passes) for one, passes in refreshed.items()]
            outer = dict(zip(refreshed, outer_seconds(model, device, count, asked) or [], strict=False))
            for one, gain in zip(measured, others, strict=True):
                whole = drafts_without_network(one.recipe) and (one in outer or one not in refreshed)
                if one in outer:
                    each = outer[one] / gain.tokens
                    gain = replace(gain, seconds=each, speedup=plain.seconds / each)
                seconds = {"seconds": gain.seconds * model.length, "plain_seconds": plain.seconds * model.length}
                found.append({"model": name, "recipe": one.title, **asdict(gain), **seconds, "whole_cost": whole})
    record = {
        "schema_version": SCHEMA_VERSION,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "predicted": True,
        "device": asdict(device),
        "recipes": found,
    }
    if output is not None:
        with replacing(output) as partial:
            partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(record))
        return
    wide = max(len(row["recipe"]) for row in found)
    print(f"{NOTE}\n{device.title}; tokens per call as measured on the model of the results, not on these models.")
    print("`<`: at most, because the cost of the network that drafts is not counted. Seconds are of one output.\n")
    print(
        f"{'model':<16}{'rows':>5}  {'recipe':<{wide}}{'window':>8}{'tokens':>8}{'seconds':>9}{'plain':>9}{'gain':>8}"
    )
    for row in found:
        bound = "" if row["whole_cost"] else "<"
        times = f"{row['seconds']:9.2f}{row['plain_seconds']:9.2f}"
        print(
            f"{row['model']:<16}{row['rows']:>5}  {row['recipe']:<{wide}}{row['width']:>8}{row['tokens']:8.2f}"
            f"{times}{bound + format(row['speedup'], '.2f'):>8}"
        )


def _sizes(option: str, text: str) -> list[int]:
    try:
        sizes = [int(piece) for piece in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or not all(1 <= size <= 1024 for size in sizes):
        raise ArgumentError(f"{option}: {text!r} must be whole numbers from 1 to 1024, separated by commas")
    return sorted(set(sizes))


def _compare(path: Path, as_json: bool) -> None:
    """Prints predicted against measured steps of a record of `mmspec bench gpu`.

    Raises:
        ArgumentError: If it is no such record.
    """
    from mmspec.metrics.bench.gpu.comparison import compared

    try:
        record = read_json(path, "--measured")
        found, device = compared(record), record["environment"]["device"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArgumentError(f"--measured: {str(path)!r} is not a record of mmspec bench gpu") from error
    if as_json:
        print(json.dumps([asdict(one) | {"ratio": one.ratio} for one in found]))
        return
    print(f"{device}: {len(found)} steps were both predicted and measured\n")
    print(f"{'model':<28}{'rows':>5}{'window':>8}{'predicted, ms':>15}{'measured, ms':>14}{'ratio':>8}")
    for one in found:
        times = f"{1e3 * one.predicted:15.3f}{1e3 * one.measured:14.3f}{one.ratio:8.2f}"
        print(f"{one.model:<28}{one.rows:>5}{one.width:>8}{times}{'' if one.captured else '  not captured'}")
