"""The counted launches of the steps that a GPU day measures, in a file, so that no device waits while they are counted.

`python -m gpu_bench.counts FILE` writes it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_bench.devices import DEVICES
from gpu_bench.plan import WHOLE
from gpu_bench.prediction import counted
from gpu_bench.published import PublishedModel
from gpu_bench.records import Record, records_of

FILE = Path(__file__).parents[1] / "counts.json"


def counts_of(models: Mapping[str, PublishedModel], rows: Sequence[int], widths: Sequence[int]) -> list[Record]:
    """The launches of each step: how many move so many bytes with so many operations."""
    found = []
    for name, published in models.items():
        for (count, width), traced in counted(published, rows, widths)[0].items():
            launches = [[n, one.bytes, one.flops] for one, n in traced.launches.items()]
            found.append({"model": name, "rows": count, "width": width, "launches": launches})
    return found


def predicted(record: Mapping[str, Any], counts: Sequence[Record]) -> Iterator[Record]:
    """The seconds that steps should take with the bandwidth and the product that a record has measured."""
    speed = {one["case"]: one for one in records_of(record, "kernels") if "case" in one}
    if not {"copy", "product"} <= set(speed):
        return
    bandwidth, flops = speed["copy"]["bytes_per_second"], speed["product"]["flops_per_second"]
    here = replace(DEVICES["h100"], title="this device", bandwidth=bandwidth, flops=flops)
    for one in counts:
        times = (n * (here.kernel + max(moved / bandwidth, work / flops)) for n, moved, work in one["launches"])
        yield {name: one[name] for name in ("model", "rows", "width")} | {"seconds": sum(times)}


if __name__ == "__main__":
    found = counts_of(WHOLE.models, (1, 8, 32), (1, 8, 16, 32, 64))
    Path(sys.argv[1]).write_text("[\n" + ",\n".join(map(json.dumps, found)) + "\n]\n", encoding="utf-8")
