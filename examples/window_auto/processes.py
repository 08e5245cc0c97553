"""Times windows in alternated calls: CPU seconds of plain decoding over those of each recipe.

python examples/window_auto/processes.py shapes --rows 1 8 --dtype bfloat16
python examples/window_auto/processes.py FOLDER --rows 1    # a class-conditional model
python examples/window_auto/processes.py repeating --rows 1

`repeating` is a LlamaGen of two layers with random weights whose output repeats the last token with about two thirds.
The first call of each recipe is not counted, but for `window=auto`, whose first call is printed too.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

import mmspec
from mmspec.vision.llamagen.gpt import LlamaGenGPT
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline

TEXTS = {"shapes": "a red circle", "scenes": "a red ball on a table", "spoken": "one two three."}
WINDOWS = ("window=8", "window=16", "window=32", "window=default", "window=auto")


def repeating() -> LlamaGenPipeline:
    gpt = LlamaGenGPT(
        vocab_size=256, dim=128, n_layer=2, n_head=4, model_type="c2i", num_classes=9, cls_token_num=1, grid_size=16
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in gpt.parameters():
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.02)
        gpt.output.weight.copy_(gpt.tok_embeddings.weight * 22)
    return LlamaGenPipeline(gpt.eval())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--recipe", default="scd")
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    pipe: Any = repeating() if args.model == "repeating" else mmspec.load(args.model, dtype=args.dtype)
    if args.model == "repeating":
        pipe.transformer.to(getattr(torch, args.dtype))
    if hasattr(pipe, "set_progress_bar_config"):
        pipe.set_progress_bar_config(disable=True)
    recipes = ["plain", *(f"{args.recipe}:{window}" for window in WINDOWS)]

    def seconds(recipe: str, rows: int, seed: int) -> tuple[float, float]:
        options: dict[str, Any] = {"recipe": recipe, "seed": 100 * seed}
        if args.model in TEXTS:
            options |= {"prompt": [TEXTS[args.model]] * rows}
        else:
            options |= {"class_labels": [i % 9 for i in range(rows)], "guidance_scale": 1.0, "output_type": "latent"}
        prompts = options.pop("prompt", None)
        begun = time.process_time()
        made = pipe(**options) if prompts is None else pipe(prompts, **options)
        stats = (made[0] if isinstance(made, list) else made).stats
        return time.process_time() - begun, stats.tokens_per_call

    print("| model | dtype | rows | " + " | ".join(recipes[1:]) + " | first call of auto |")
    print("|" + " --- |" * (len(recipes) + 3))
    for rows in args.rows:
        first = {recipe: seconds(recipe, rows, 0)[0] for recipe in recipes}
        took: dict[str, list[float]] = {recipe: [] for recipe in recipes}
        calls: dict[str, float] = {}
        for round_ in range(args.rounds):
            for recipe in recipes if round_ % 2 else reversed(recipes):
                own, calls[recipe] = seconds(recipe, rows, 1 + round_)
                took[recipe].append(own)
        plain = median(took["plain"])
        cells = [f"{plain / median(took[recipe]):.2f} ({calls[recipe]:.1f})" for recipe in recipes[1:]]
        name = Path(args.model).parent.name if "/" in args.model else args.model
        print(f"| {name} | {args.dtype} | {rows} | " + " | ".join(cells) + f" | {plain / first[recipes[-1]]:.2f} |")


if __name__ == "__main__":
    main()
