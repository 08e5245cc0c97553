"""Processor time of plain decoding over that of exact methods, in turns, so that a busy machine changes little.

Command:  OMP_NUM_THREADS=1 python photo_seconds.py runs/photos/model --batch 1
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import mmspec

RECIPES = (
    "plain", "scd:window=8", "scd", "scd:window=32", "scd:window=64", "sjd", "scd:window=64,refresh=outer", "draft",
    "layer-skip",
)  # fmt: skip


def measure(pipe: Any, batch: int, repeats: int) -> list[dict[str, Any]]:
    """The median ratio of each recipe, with the smallest and largest; all decode the same classes and seeds."""
    classes = pipe.transformer.config.num_classes
    seconds = np.zeros((repeats + 1, len(RECIPES)))
    calls = np.zeros_like(seconds)
    for repeat in range(repeats + 1):
        seeds = [repeat * batch + i for i in range(batch)]
        for i, recipe in enumerate(RECIPES):
            start = time.process_time()
            out = pipe(class_labels=[s % classes for s in seeds], seed=seeds, recipe=recipe, output_type="latent")
            seconds[repeat, i] = time.process_time() - start
            calls[repeat, i] = out.stats.target_calls
    ratios = (seconds[:, :1] / seconds)[1:]  # without the warm-up
    return [
        {
            "recipe": recipe,
            "batch": batch,
            "repeats": repeats,
            "ratio": [round(float(f(ratios[:, i])), 3) for f in (np.median, np.min, np.max)],
            "ms_per_call": round(1000 * float(np.median(seconds[1:, i] / calls[1:, i])), 2),
        }
        for i, recipe in enumerate(RECIPES)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    args = parser.parse_args()
    pipe = mmspec.load(args.model)
    pipe.set_progress_bar_config(disable=True)
    rows = measure(pipe, args.batch, args.repeats)
    args.out.mkdir(exist_ok=True)
    (args.out / f"seconds-{args.batch}.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print("| recipe | batch | processor time of plain over its own | ms per target call |\n| --- | ---: | --- | ---: |")
    for row in rows:
        ratio = "{:.2f} [{:.2f}, {:.2f}]".format(*row["ratio"])
        print(f"| `{row['recipe']}` | {row['batch']} | {ratio} | {row['ms_per_call']:.2f} |")


if __name__ == "__main__":
    main()
