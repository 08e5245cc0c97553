"""Times windows in alternated runs: CPU seconds of plain decoding over those of each recipe.

python examples/window_auto/processes.py shapes --rows 1 8 --dtype bfloat16
python examples/window_auto/processes.py FOLDER    # a class-conditional model
python examples/window_auto/processes.py repeating llamagen-b llasa-1b    # random weights

Each model, dtype and number of rows is a line of `processes.json`, which a later call does not measure again. Each
round runs all widths one after the other, and begins with a policy that knows nothing: its first image and its second
one are told apart. A line has the median over rounds of what plain decoding takes over what a run takes.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple, Protocol

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import mmspec
from mmspec.decoding.window_policy import AdaptiveWindows, adaptive_windows_of
from mmspec.vision.llamagen.gpt import LlamaGenGPT
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline

FOUND = Path(__file__).parent / "processes.json"
TEXTS = {"shapes": "a red circle", "scenes": "a red 7 at the top left", "spoken": "one two three."}
WIDTHS = (8, 16, 32)
PLAIN, FIRST, AUTO = "plain", "auto, first image", "auto"


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


class Decode(Protocol):
    """Decodes a batch, and returns its tokens per call."""

    def __call__(self, recipe: str, seed: int) -> float: ...


class Runs(NamedTuple):
    """What one way to decode took.

    Attributes:
        speed: The median over rounds of plain decoding's CPU seconds over its own.
        least: The smallest of these.
        seconds: The median of its CPU seconds.
        tokens_per_call: The mean over rounds.
    """

    speed: float
    least: float
    seconds: float
    tokens_per_call: float


def images(pipe: Any, rows: int, text: str | None) -> tuple[Decode, AdaptiveWindows]:
    """How a pipeline is called, and the policies that it keeps."""
    if hasattr(pipe, "set_progress_bar_config"):
        pipe.set_progress_bar_config(disable=True)
    call = partial(pipe, class_labels=[i % 9 for i in range(rows)], guidance_scale=1.0, output_type="latent")
    if text is not None:
        call = partial(pipe, [text] * rows)

    def run(recipe: str, seed: int) -> float:
        made = call(recipe=recipe, seed=seed)
        return float((made[0] if isinstance(made, list) else made).stats.tokens_per_call)

    kept = pipe.adapter.__dict__["_adaptive_windows"] if hasattr(pipe, "adapter") else None
    return run, adaptive_windows_of(pipe.transformer) if kept is None else kept


def llasa(dtype: torch.dtype, rows: int, tokens: int = 64) -> tuple[Decode, AdaptiveWindows]:
    """A Llama of Llasa-1B's shape, with random weights that repeat the last token with about 0.7."""
    config = LlamaConfig(
        vocab_size=193800, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    torch.set_default_dtype(dtype)
    model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        embeddings = model.get_input_embeddings().weight.normal_(0, 0.02, generator=generator)
        model.lm_head.weight.copy_(0.4 * embeddings)
        embeddings.mul_(300)
    prompt = torch.randint(193800, (rows, 8), generator=generator)

    def run(recipe: str, seed: int) -> float:
        found: list[Any] = []
        model.generate(
            prompt, custom_generate=mmspec.generate, do_sample=True, top_k=0, max_new_tokens=tokens, recipe=recipe,
            seed=seed, on_stats=found.append,
        )  # fmt: skip
        return float(found[0].tokens_per_call)

    return run, adaptive_windows_of(model)


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
    parser.add_argument("--rounds", type=int, default=5)
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


def measured(model: str, dtype: str, rows: int, recipe: str, rounds: int) -> dict[str, Runs]:
    """What each way to decode took."""
    kind = getattr(torch, dtype)
    if model == "llasa-1b":
        call, kept = llasa(kind, rows)
    else:
        pipe = RANDOM[model]() if model in RANDOM else mmspec.load(model, dtype=dtype)
        if model in RANDOM:
            pipe.transformer.to(kind)
        call, kept = images(pipe, rows, TEXTS.get(model))
    ways = {PLAIN: PLAIN, **{str(width): f"{recipe}:window={width}" for width in WIDTHS}}
    ways |= {FIRST: f"{recipe}:window=auto", AUTO: f"{recipe}:window=auto"}
    took: dict[str, list[float]] = {way: [] for way in ways}
    gained: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way in ways:
            if way == FIRST:
                kept.clear()
            begun = time.process_time()
            tokens_per_call = call(ways[way], 100 * number)
            if number:  # the first round prepares
                took[way].append(time.process_time() - begun)
                gained[way].append(tokens_per_call)
    found = {}
    for way, seconds in took.items():
        speeds = [plain / own for plain, own in zip(took[PLAIN], seconds, strict=True)]
        numbers = median(speeds), min(speeds), median(seconds), fmean(gained[way])
        found[way] = Runs(*(round(number, 3) for number in numbers))
    return found


def table(lines: list[dict[str, Any]]) -> str:
    """How many times as fast as plain decoding each run is; the best width in brackets."""
    found = ["|model|best width|first image|second|", "|---|---:|---:|---:|"]
    for line in lines:
        speeds = {way: Runs(*runs).speed for way, runs in line["runs"].items()}
        best = max((PLAIN, *map(str, WIDTHS)), key=speeds.__getitem__)
        cells = [name_of(line), f"{speeds[best]:.2f} ({best})", f"{speeds[FIRST]:.2f}", f"{speeds[AUTO]:.2f}"]
        found.append(f"|{'|'.join(cells)}|")
    return "\n".join(found)


def name_of(line: dict[str, Any]) -> str:
    """The name of a line: its model, and what is not as usual."""
    dtype, rows = line["dtype"], line["rows"]
    return line["model"] + f", {dtype}" * (dtype != "float32") + f", {rows} rows" * (rows > 1)


if __name__ == "__main__":
    main()
