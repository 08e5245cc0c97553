"""Exact methods on the trained model: tokens per call with intervals, and whether the distribution is kept.

Command:  PYTHONPATH=../third_party OMP_NUM_THREADS=1 python photo_methods.py runs/photos/model --images 300

Results lie beside the model in methods.json; a restarted command measures the rows that are missing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from measure import measured

import mmspec

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "T 1": {},
    "T 1, CFG 3, top-k 160": {"guidance_scale": 3.0, "top_k": 160},
    "T 0.9, top-p 0.95": {"temperature": 0.9, "top_p": 0.95},
}
RECIPES = (
    "scd", "scd:window=32", "scd:window=64", "sjd", "scd:window=8", "scd:window=64,refresh=outer", "scd:window=128",
    "draft", "scd:refresh=model", "scd:window=32,refresh=model", "tree-dynamic", "stand", "recycle", "layer-skip",
    "plain",
)  # fmt: skip


def measure_all(pipe: Any, file: Path, images: int, recipes: Sequence[str], settings: Mapping[str, Any]) -> None:
    """Measures what is not in the file yet, row by row, and prints each."""
    rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    classes = pipe.transformer.config.num_classes
    for name, sampling in settings.items():

        def call(prompts: Sequence[str], seed: Sequence[int], given: Any = sampling, **options: Any) -> Any:
            labels = [each % classes for each in seed]
            return pipe(class_labels=labels, seed=seed, output_type="latent", **given, **options)

        for recipe in recipes:
            if any((row["setting"], row["recipe"], row["images"]) == (name, recipe, images) for row in rows):
                continue
            rows.append({"setting": name, **measured(call, recipe, images)})
            file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            print(rows[-1], flush=True)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = ["| setting | recipe | images | tokens per call | bits per token | nll - entropy |"]
    lines.append("| --- | --- | ---: | --- | ---: | --- |")
    for row in rows:
        calls, gap = (
            "{:.{n}f} [{:.{n}f}, {:.{n}f}]".format(*row[key], n=n)
            for key, n in (("tokens_per_call", 2), ("nll_minus_entropy", 3))
        )
        lines.append(
            f"| {row['setting']} | `{row['recipe']}` | {row['images']} | {calls} | {row['nll'][0]:.2f} | {gap} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--recipes", default="", help="separated by semicolons; all by default")
    args = parser.parse_args()
    pipe = mmspec.load(args.model)
    pipe.set_progress_bar_config(disable=True)
    file = args.model / "methods.json"
    measure_all(pipe, file, args.images, args.recipes.split(";") if args.recipes else RECIPES, SETTINGS)
    print(table(json.loads(file.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
