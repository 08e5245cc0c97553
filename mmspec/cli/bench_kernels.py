"""`mmspec bench kernels`: the cost of verification, apart from any model."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from mmspec import limits
from mmspec.arguments import check_device
from mmspec.cli.memory import bounded_memory
from mmspec.cli.options import Device, Json
from mmspec.errors import unknown_name
from mmspec.files import STDOUT, check_writable, replacing

SCHEMA_VERSION = 1
DTYPES = ("float32", "float16", "bfloat16")


def bench_kernels(
    batch: Annotated[int, typer.Option(min=1, max=4096, help="Rows.")] = 4,
    window: Annotated[int, typer.Option(min=1, max=1024, help="Drafts per row.")] = 96,
    vocab: Annotated[int, typer.Option(min=1, max=1_000_000, help="Tokens of the vocabulary.")] = 16384,
    dtype: Annotated[str, typer.Option(help="Of the logits: float32, float16 or bfloat16.")] = "float32",
    repeats: Annotated[int, typer.Option(min=1, help="Timed calls of each implementation.")] = 5,
    device: Device = "cpu",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", show_default=False, help="Write everything to this JSON file, or - for stdout."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Time the verification of one window: a Python loop, the torch path, and on a CUDA device the kernels."""
    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    if output == STDOUT:  # the record instead of the table, as with --json
        output, as_json = None, True
    limits.LOGITS.check("--batch, --window and --vocab", batch * (window + 1) * vocab)
    if output is not None:
        check_writable(output, "-o/--output")

    import torch

    from mmspec.metrics.bench import kernels as kernel_bench
    from mmspec.metrics.environment import environment

    check_device(device)
    with bounded_memory("--batch, --window and --vocab"), torch.inference_mode():
        report = kernel_bench.bench_kernels(torch.device(device), batch, window, vocab, getattr(torch, dtype), repeats)
    record = {
        "schema_version": SCHEMA_VERSION,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(),
        **asdict(report),
    }
    if output is not None:
        with replacing(output) as partial:
            partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(record))
        return
    slowest = report.ways[0].seconds[0]
    print(f"{'name':<10}{'ms':>10}{'min':>10}{'max':>10}{'speed-up':>10}{'GB/s':>9}{'of a copy':>11}")
    for way in report.ways:
        ms = "".join(f"{1e3 * seconds:10.2f}" for seconds in way.seconds)
        share = way.bandwidth / report.copy_bandwidth
        print(f"{way.name:<10}{ms}{slowest / way.seconds[0]:9.1f}x{way.bandwidth / 1e9:9.1f}{share:11.1%}")
    print(f"\n{batch} rows, {window} drafts, {vocab} tokens, {dtype}, on {record['environment']['device']}")
