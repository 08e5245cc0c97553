"""What each example of this folder runs: a table of recipes, or any command of `mmspec` with the model registered."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

import mmspec
from mmspec.cli.app import main as command
from mmspec.metrics.bootstrap import bootstrap
from mmspec.metrics.environment import environment

Load = Callable[[Path, str, torch.dtype], Any]
BATCH = 16


@dataclass(frozen=True)
class Example:
    """A model of other people.

    Attributes:
        name: Under which it is registered.
        load: (file, device, dtype) -> pipeline.
        checks: (file, pipeline, recipes) -> comparisons with the code of its authors, by name.
        recipes: The recipes to measure, plain decoding first.
        rows: Images per recipe.
    """

    name: str
    load: Load
    checks: Callable[[Path, Any, Sequence[str]], dict[str, Any]]
    recipes: Sequence[str]
    rows: int


def main(example: Example) -> None:
    """Reads FILE [COMMAND ...]: without a command it measures, and writes results/NAME-FILE.json."""
    if len(sys.argv) < 2:
        sys.exit(f"usage: python {sys.argv[0]} FILE [COMMAND OF MMSPEC ...]")
    file, words = Path(sys.argv[1]).resolve(), sys.argv[2:]

    def load(device: str, dtype: torch.dtype) -> Any:
        return example.load(file, device, dtype)

    mmspec.register("model", example.name, load)
    if words:
        sys.exit(command(words))
    pipe = mmspec.load(example.name)
    pipe.set_progress_bar_config(disable=True)
    with torch.inference_mode():
        checks = example.checks(file, pipe, example.recipes)
    print(json.dumps(checks, indent=1))
    rows = [measured(pipe, recipe, example.rows) for recipe in example.recipes]
    record = {
        "model": example.name,
        "file": file.name,
        "checks": checks,
        "rows": rows,
        "versions": {name: environment()[name] for name in ("mmspec", "torch", "transformers")},
    }
    out = Path(__file__).with_name("results") / f"{example.name}-{file.stem}.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("| recipe | images | tokens per call | bits per token | nll - entropy |\n| --- | ---: | --- | ---: | --- |")
    for row in rows:
        calls, gap = (f"{row[name][0]:.{n}f} [{row[name][1]:.{n}f}, {row[name][2]:.{n}f}]" for name, n in FIGURES)
        print(f"| {row['recipe']} | {row['images']} | {calls} | {row['nll'][0]:.2f} | {gap} |")


FIGURES = (("tokens_per_call", 2), ("nll_minus_entropy", 3))


def measured(pipe: Any, recipe: str, count: int) -> dict[str, Any]:
    """Tokens per call, bits per token and their difference from the entropy, with 95 % intervals over images."""
    rows = []
    for first in range(0, count, BATCH):
        seeds = list(range(first, min(first + BATCH, count)))
        rows += pipe([""] * len(seeds), recipe=recipe, seed=seeds, measure_entropy=True).stats.rows
    tokens, calls, nll, entropy = np.array([(row.tokens, row.target_calls, row.nll, row.entropy) for row in rows]).T

    def with_interval(statistic: Callable[[Any], float]) -> list[float]:
        found = bootstrap(statistic, len(rows))
        return [round(value, 4) for value in (found.value, found.low, found.high)]

    return {
        "recipe": recipe,
        "images": count,
        "tokens_per_call": with_interval(lambda i: float(tokens[i].sum() / calls[i].sum())),
        "nll": with_interval(lambda i: float(nll[i].mean())),
        "nll_minus_entropy": with_interval(lambda i: float((nll - entropy)[i].mean())),
    }


def authors_module(checkout: Path, name: str) -> ModuleType:
    """A module of the code that the authors publish beside their weights, as they import it themselves."""
    sys.path.insert(0, str(checkout))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(checkout))
