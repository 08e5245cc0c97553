"""The time of one target call, on random weights of a published size: a part of `mmspec bench image`."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from mmspec.arguments import check_device
from mmspec.cli.memory import bounded_memory
from mmspec.files import check_writable, replacing

SCHEMA_VERSION = 1
WINDOW = 16


def bench_steps(config: str, device: str, batches: list[int], repeats: int, output: Path | None, as_json: bool) -> None:
    """Prints the time of plain and window steps and of their bytes; bfloat16 on a CUDA device, else float32.

    Raises:
        UnknownNameError: If there is no config of that name.
        ArgumentError: If the device cannot be used.
    """
    if output is not None:
        check_writable(output, "-o/--output")

    import torch

    from mmspec.metrics.bench.steps import bench_steps as measure
    from mmspec.metrics.environment import environment

    check_device(device)
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    with bounded_memory("--config and --batch"):
        times = {batch: measure(config, torch.device(device), dtype, batch, WINDOW, repeats) for batch in batches}
    record = {
        "schema_version": SCHEMA_VERSION,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": {"config": config, "random_weights": True, "window": WINDOW, "dtype": str(dtype)},
        "environment": environment(),
        "steps": {str(batch): [asdict(step) for step in steps] for batch, steps in times.items()},
    }
    if output is not None:
        with replacing(output) as partial:
            partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(record))
        return
    print(f"{'batch':>5}  {'step':<24}{'ms':>9}{'floor':>9}{'share':>8}")
    for batch, steps in times.items():
        for step in steps:
            print(f"{batch:>5}  {step.name:<24}{1e3 * step.seconds[0]:9.2f}{1e3 * step.floor:9.2f}{step.share:8.0%}")
