"""Samples of the trained model by exact methods and relaxed rules, which `photo_tables.py` makes tables of.

Command:  OMP_NUM_THREADS=1 python photo_methods.py runs/photos/model --out runs/photos/samples

A restarted command continues where it was stopped. `--drafter FOLDER` adds a trained head, and runs the methods that
need it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import mmspec

BATCH = 50
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "T 1": {},
    "T 1, guidance 3, top-k 160": {"guidance_scale": 3.0, "top_k": 160},
    "T 0.9, top-p 0.95": {"temperature": 0.9, "top_p": 0.95},
}
FIGURES = {  # fields of a row's statistics, by their names in the files of samples
    "tokens": "tokens", "calls": "target_calls", "nll": "nll", "entropy": "entropy", "tv_bound": "tv_bound",
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """Images of one recipe.

    Attributes:
        first: The seed of the first image.
    """

    setting: str
    recipe: str
    images: int
    first: int = 0

    @property
    def file(self) -> str:
        """The name of the file of its samples."""
        place = list(SETTINGS).index(self.setting)
        words = self.recipe.replace(":", "-").replace(",", "-").replace("/", "_")
        return f"{place}-{words}{f'-from-{self.first}' if self.first else ''}.npz"


T1, GUIDED, CUT = SETTINGS
REFERENCE = Job(T1, "plain", 400, 1000)  # what distances are to: plain decoding of other seeds
MAIN = ("plain", "scd", "scd:window=32", "scd:window=64", "sjd", "scd:window=64,refresh=outer", "draft")
MORE = (
    "scd:window=8", "layer-skip", "scd:window=32,refresh=model", "tree-dynamic", "draft:window=9",
    "scd:window=64,layers=4,refresh=outer", "stand", "recycle",
)  # fmt: skip
RELAXED = (
    "scd+omega:delta=20", "scd+lantern:delta=0.1", "scd+lantern:delta=0.4", "scd+gsd:group=6",
    "scd+typical:epsilon=0.03", "scd+lantern:delta=0.8", "scd+beta:beta=0.2", "scd+lantern++:factor=10",
    "scd+ensemble:draft=0.2", "scd+top-m:m=12",
)  # fmt: skip
OTHER = (*MAIN, "scd:window=8", "stand", "recycle")
# In the order of what they tell, so that a run that is stopped early has the main rows.
JOBS = (
    REFERENCE,
    *(Job(T1, recipe, 100) for recipe in (*MAIN, *RELAXED)),
    Job(T1, "scd:window=128", 50),
    Job(T1, "scd:window=128", 300, 2000),  # of other seeds: the interval of nll - entropy of the fifty excludes 0
    *(Job(T1, recipe, 300) for recipe in (*MAIN, *RELAXED, *MORE)),
    *(Job(setting, recipe, 300) for setting in (GUIDED, CUT) for recipe in OTHER),
    *(Job(setting, "scd:window=128", 100) for setting in (GUIDED, CUT)),
)
HEADS: Mapping[str, Sequence[Job]] = {
    "outer": [Job(T1, f"scd:window={n},refresh=outer,passes=4", 300) for n in (64, 32)],
    "eagle": [Job(T1, recipe, 300) for recipe in ("eagle", "scd:window=32,refresh=eagle")],
    "block": [Job(T1, "block", 300)],
}


def decode(pipe: Any, job: Job, folder: Path) -> None:
    """Decodes the images of a job that its file does not have yet."""
    file = folder / job.file
    found = dict(np.load(file)) if file.exists() else {}
    classes = pipe.transformer.config.num_classes
    for first in range(len(found.get("calls", ())), job.images, BATCH):
        seeds = [job.first + i for i in range(first, min(first + BATCH, job.images))]
        out = pipe(
            class_labels=[seed % classes for seed in seeds], seed=seeds, recipe=job.recipe, output_type="latent",
            measure_entropy=True, **SETTINGS[job.setting],
        )  # fmt: skip
        new = {name: np.array([getattr(row, field) for row in out.stats.rows]) for name, field in FIGURES.items()}
        new["codes"] = out.tokens.numpy().astype(np.int16)
        found = {name: np.concatenate([found[name], value]) if found else value for name, value in new.items()}
        np.savez(file.with_suffix(".new.npz"), **found)
        file.with_suffix(".new.npz").rename(file)
    print(f"{job.setting}: {job.recipe}, {job.images} images", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/photos/samples"))
    parser.add_argument(
        "--recipes", help="separated by semicolons, so that processes can share the work; all by default"
    )
    parser.add_argument("--drafter", type=Path, help="a head that `mmspec train-drafter` trained")
    args = parser.parse_args()
    pipe = mmspec.load(args.model, drafter=args.drafter)
    pipe.set_progress_bar_config(disable=True)
    args.out.mkdir(parents=True, exist_ok=True)
    for job in JOBS if args.drafter is None else [job for kind in pipe.heads for job in HEADS[kind]]:
        if args.recipes is None or job.recipe in args.recipes.split(";"):
            decode(pipe, job, args.out)


if __name__ == "__main__":
    main()
