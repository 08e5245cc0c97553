"""`python -m gpu_bench.part PART DEVICE SECONDS|tiny FILE`: runs one part and appends a line of JSON per record."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import torch
from gpu_bench.parts import PARTS
from gpu_bench.plan import WHOLE, tiny


def main(name: str, device: str, size: str, output: str) -> None:
    """Runs one part in this process."""
    plan = tiny() if size == "tiny" else replace(WHOLE, seconds={**WHOLE.seconds, name: float(size)})
    with open(output, "a", encoding="utf-8") as lines:
        for record in PARTS[name](plan, torch.device(device)):
            lines.write(json.dumps(record) + "\n")
            lines.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
