"""`mmspec bench gpu`: everything that a CUDA device can show, in one run."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from mmspec.arguments import check_device
from mmspec.cli.options import Json
from mmspec.errors import ArgumentError, unknown_name
from mmspec.files import check_writable
from mmspec.files.folders import replacing_inside

SCHEMA_VERSION = 1
RECORD, PAGE = "gpu.json", "gpu.html"


def bench_gpu(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The folder of gpu.json and gpu.html; made if it is missing.")
    ] = Path("gpu-report"),
    device: Annotated[str, typer.Option(help="cuda, cuda:1; cpu with --tiny only.")] = "cuda",
    parts: Annotated[
        str, typer.Option(help="Separated by commas: speed, tests, attention, kernels, steps, loop, predicted.")
    ] = "all",
    tiny: Annotated[bool, typer.Option("--tiny", help="A rehearsal: every part at tiny sizes, on a CPU too.")] = False,
    limit: Annotated[float, typer.Option(min=1, help="Seconds for all parts.")] = 570.0,
    as_json: Json = False,
) -> None:
    """Run tests, kernels, attention, steps of published sizes and the loop on a device, and compare with predictions.

    Needs neither weights nor a network, and less than ten minutes. Each part has a process and a time limit of its own;
    what one has finished is kept if it fails.
    """
    from mmspec.metrics.bench.gpu.parts import PARTS
    from mmspec.metrics.bench.gpu.process import run_parts

    names = list(PARTS) if parts == "all" else [name.strip() for name in parts.split(",")]
    for name in names:
        if name not in PARTS:
            raise unknown_name("part", name, PARTS)
    check_device(device)
    if not device.startswith("cuda") and not tiny:
        raise ArgumentError(f"device={device!r} is not allowed without --tiny; it must be a CUDA device")
    check_writable(output / RECORD if output.is_dir() else output, "-o/--output")

    from mmspec.metrics.bench.gpu.page import gpu_page
    from mmspec.metrics.environment import environment

    size = "tiny" if tiny else "whole"
    found = run_parts(device, size, names, limit, lambda name: print(f"{name} ...", file=sys.stderr, flush=True))
    record = {
        "schema_version": SCHEMA_VERSION,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": {"device": device, "size": size, "parts": names, "limit": limit},
        "environment": environment(),
        "parts": found,
    }
    output.mkdir(exist_ok=True)
    for name, text in ((RECORD, json.dumps(record, indent=1) + "\n"), (PAGE, gpu_page(record))):
        with replacing_inside(output, name) as partial:
            partial.write_text(text, encoding="utf-8")
    if as_json:
        print(json.dumps(record))
        return
    for name, part in found.items():
        records = part["records"]
        counts = f"{len(records)} records, {sum('error' in one for one in records)} errors"
        print(f"{name:<10} {part['status']:<8} {part['seconds']:6.1f} s  {counts}  {part['error'] or ''}".rstrip())
    print(f"\n{output / PAGE}\n{output / RECORD}")
