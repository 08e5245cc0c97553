"""Tables of the samples of `photo_methods.py`: exact methods, and relaxed rules against wider exact windows.

Command:  python photo_tables.py runs/photos/model --samples runs/photos/samples --out results

Distances are to plain decoding with other seeds, over features of the model's own tokenizer. Intervals are 95 %, over
images.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from photo_methods import HEADS, JOBS, REFERENCE, RELAXED, T1, Job

from mmspec.metrics.bootstrap import bootstrap
from mmspec.metrics.image.frechet import frechet_distance
from mmspec.metrics.image.precision_recall import precision_recall
from mmspec.vision.shapes.tokenizer import ShapesTokenizer

EXACT = ("scd", "scd:window=32", "scd:window=64", "scd:window=64,refresh=outer")


def tokenizer_features(tokenizer: ShapesTokenizer, codes: NDArray[np.int16]) -> NDArray[np.float64]:
    """Means and deviations over an image of the encoder's last layer but one, of the decoded images."""
    parts = []
    with torch.no_grad():
        for some in torch.from_numpy(codes).long().split(50):
            hidden = tokenizer.encoder[:-1](tokenizer.decode(some)).flatten(2)
            parts.append(torch.cat([hidden.mean(-1), hidden.std(-1)], 1).double())
    return torch.cat(parts).numpy()


def interval(statistic: Callable[[Any], float], count: int, halves: bool = False) -> list[float]:
    """Value, low and high."""
    found = bootstrap(statistic, count, halves=halves, resamples=100 if halves else 1000)
    return [round(value, 4) for value in (found.value, found.low, found.high)]


def figures(job: Job, samples: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Tokens per call, bits per token, their difference from the entropy, and the bound."""
    tokens, calls, nll, entropy = (samples[name] for name in ("tokens", "calls", "nll", "entropy"))
    return {
        "setting": job.setting,
        "recipe": job.recipe,
        "images": len(calls),
        "tokens_per_call": interval(lambda i: float(tokens[i].sum() / calls[i].sum()), len(calls)),
        "nll": interval(lambda i: float(nll[i].mean()), len(calls)),
        "nll_minus_entropy": interval(lambda i: float((nll - entropy)[i].mean()), len(calls)),
        "tv_bound": round(float(samples["tv_bound"].mean()), 4),
    }


def distances(features: NDArray[np.float64], reference: NDArray[np.float64]) -> dict[str, Any]:
    """The Frechet distance, precision and recall of features from those of plain decoding."""
    covered = precision_recall(features, reference)
    return {
        "compared": len(features),
        "frechet": interval(lambda i: frechet_distance(features[i], reference), len(features), halves=True),
        "precision": interval(lambda i: float(covered.generated[i].mean()), len(features)),
        "recall": interval(lambda i: float(covered.reference[i].mean()), len(reference)),
    }


def text(value: list[float], digits: int) -> str:
    return "{:.{n}f} [{:.{n}f}, {:.{n}f}]".format(*value, n=digits)


def tables(rows: list[dict[str, Any]]) -> str:
    """Both tables as Markdown."""
    lines = [
        "| setting | recipe | images | tokens per call | bits per token | nll - entropy |",
        "|---|---|---:|---|---:|---|",
    ]
    setting = ""
    for row in rows:
        if row["recipe"] not in RELAXED:
            values = (text(row["tokens_per_call"], 2), f"{row['nll'][0]:.2f}", text(row["nll_minus_entropy"], 3))
            first = "" if row["setting"] == setting else f" {row['setting']}"
            lines.append(f"|{first} | `{row['recipe']}` | {row['images']} | {' | '.join(values)} |")
            setting = row["setting"]
    compared = [row for row in rows if "frechet" in row]
    if compared:
        lines += ["", f"Images of each recipe that are compared: {compared[0]['compared']}.", ""]
    lines += [
        "| recipe | tokens per call | bits per token | TV bound | Frechet | precision | recall |",
        "|---|" + "---:|" * 6,
    ]
    for row in compared:
        points = (f"{row[name][0]:.2f}" for name in ("tokens_per_call", "nll"))
        covered = (f"{row[name][0]:.2f}" for name in ("precision", "recall"))
        cells = [f"`{row['recipe']}`", *points, f"{row['tv_bound']:.3f}", text(row["frechet"], 3), *covered]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--samples", type=Path, default=Path("runs/photos/samples"))
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    args = parser.parse_args()
    tokenizer = ShapesTokenizer.from_pretrained(args.model / "vqvae").float().eval()
    jobs = {job.file: job for job in (*JOBS, *sum(map(list, HEADS.values()), []))}
    found = {job: dict(np.load(args.samples / file)) for file, job in jobs.items() if (args.samples / file).exists()}
    reference = found.pop(REFERENCE, None)
    most = {(job.setting, job.recipe): job for job in sorted(found, key=lambda job: len(found[job]["codes"]))}
    settings = list(dict.fromkeys(job.setting for job in found))
    kept = sorted((job for job in found if job in most.values()), key=lambda job: settings.index(job.setting))
    found = {job: found[job] for job in kept}
    rows = [figures(job, samples) for job, samples in found.items()]
    if reference is not None:
        compared = [job for job in found if job.setting == T1 and job.recipe in ("plain", *EXACT, *RELAXED)]
        least = min(len(found[job]["codes"]) for job in compared)  # Frechet distances depend on the number
        others = tokenizer_features(tokenizer, reference["codes"])
        for row, (job, samples) in zip(rows, found.items(), strict=True):
            if job in compared:
                row |= distances(tokenizer_features(tokenizer, samples["codes"][:least]), others)
    args.out.mkdir(exist_ok=True)
    (args.out / "methods.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (args.out / "methods.md").write_text(tables(rows), encoding="utf-8")
    print(tables(rows))


if __name__ == "__main__":
    main()
