"""Times windows in alternated runs: CPU seconds of plain decoding over those of each recipe.

python examples/window_auto/processes.py shapes --rows 1 8 --dtype bfloat16
python examples/window_auto/processes.py FOLDER    # a class-conditional model
python examples/window_auto/processes.py repeating llamagen-b    # random weights that mostly repeat the last token

Each model, dtype and number of rows is a line of `processes.json`, which a later call does not measure again. Each
round begins with a policy that knows nothing: its first image and its second one are told apart.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

import mmspec
from mmspec.decoding.window_policy import adaptive_windows_of
from mmspec.vision.llamagen.gpt import LlamaGenGPT
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline

FOUND = Path(__file__).parent / "processes.json"
TEXTS = {"shapes": "a red circle", "scenes": "a red 7 at the top left", "spoken": "one two three."}
VOICES = ("spoken",)
WIDTHS = (8, 16, 32)
FIRST, AUTO = "auto, first image", "auto"


def repeating(dim: int, layers: int, heads: int, vocabulary: int, grid: int, embedded: float, scale: float) -> Any:
    """A LlamaGen with random weights whose output repeats the last token with about two thirds."""
    gpt = LlamaGenGPT(
        vocab_size=vocabulary, dim=dim, n_layer=layers, n_head=heads, model_type="c2i", num_classes=9,
        cls_token_num=1, grid_size=grid,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in gpt.parameters():
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.02)
        gpt.tok_embeddings.weight.mul_(embedded)
        gpt.output.weight.copy_(gpt.tok_embeddings.weight * scale)
    return LlamaGenPipeline(gpt.eval())


RANDOM = {
    "repeating": partial(repeating, 128, 2, 4, 256, 16, 1.0, 22.0),
    "llamagen-b": partial(repeating, 768, 12, 12, 16384, 8, 50.0, 0.02),  # 64 tokens
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--recipe", default="scd")
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = json.loads(FOUND.read_text()) if FOUND.exists() else []
    for model in args.models:
        name = Path(model).parent.name if "/" in model else model
        for rows in args.rows:
            key = {"model": name, "dtype": args.dtype, "rows": rows}
            if not any(key.items() <= line.items() for line in lines):
                lines.append(key | {"runs": measured(model, args.dtype, rows, args.recipe, args.rounds)})
                FOUND.write_text(json.dumps(lines, indent=1) + "\n")
    print(table(lines))


def measured(model: str, dtype: str, rows: int, recipe: str, rounds: int) -> dict[str, list[float]]:
    """By run: the median of its CPU seconds, the seconds of the slowest one, and tokens per call of the last one."""
    pipe = RANDOM[model]() if model in RANDOM else mmspec.load(model, dtype=dtype)
    if model in RANDOM:
        pipe.transformer.to(getattr(torch, dtype))
    if hasattr(pipe, "set_progress_bar_config"):
        pipe.set_progress_bar_config(disable=True)
    if model in TEXTS:
        call = partial(pipe, [TEXTS[model]] * rows)
    else:
        call = partial(pipe, class_labels=[i % 9 for i in range(rows)], guidance_scale=1.0, output_type="latent")
    runs = {"plain": "plain", **{str(width): f"{recipe}:window={width}" for width in WIDTHS}}
    runs |= {FIRST: f"{recipe}:window=auto", AUTO: f"{recipe}:window=auto"}
    kept = adaptive_windows_of(pipe.transformer) if model not in VOICES else pipe.adapter.__dict__["_adaptive_windows"]
    took: dict[str, list[float]] = {run: [] for run in runs}
    calls: dict[str, float] = {}
    for number in range(rounds + 1):
        for run in runs:
            if run == FIRST:
                kept.clear()
            begun = time.process_time()
            made = call(recipe=runs[run], seed=100 * number)
            if number:  # the first round prepares
                took[run].append(time.process_time() - begun)
            calls[run] = (made[0] if isinstance(made, list) else made).stats.tokens_per_call
    return {run: [round(each, 3) for each in (median(took[run]), max(took[run]), calls[run])] for run in runs}


def table(lines: list[dict[str, Any]]) -> str:
    """Times as fast as plain decoding; the best width in brackets."""
    found = ["| model | best width | first image | second |", "|---|---:|---:|---:|"]
    for line in lines:
        runs, dtype, rows = line["runs"], line["dtype"], line["rows"]
        speeds = {run: runs["plain"][0] / took for run, (took, _, _) in runs.items()}
        best = max(("plain", *map(str, WIDTHS)), key=speeds.__getitem__)
        name = line["model"] + f", {dtype}" * (dtype != "float32") + f", {rows} rows" * (rows > 1)
        cells = [name, f"{speeds[best]:.2f} ({best})", f"{speeds[FIRST]:.2f}", f"{speeds[AUTO]:.2f}"]
        found.append(f"| {' | '.join(cells)} |")
    return "\n".join(found)


if __name__ == "__main__":
    main()
