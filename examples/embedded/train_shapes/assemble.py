"""Counts the n-gram table, if the model yields single tokens, and writes the index of the pipeline.

Command: python -m train_shapes.assemble --out runs/shapes        (after gpt, whose codes are counted)
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from train_shapes.config import RUNS
from train_shapes.data import load_codes
from train_shapes.export import export

from mmspec.drafters.ngram import NGramTable
from mmspec.vision.llamagen.gpt import LlamaGenBlockGPT, LlamaGenGPT
from mmspec.vision.llamagen.ngram import NGramTokenTable
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline
from mmspec.vision.shapes.config import GUIDANCE, TEMPERATURE, WEIGHTS
from mmspec.vision.shapes.text import ShapesTextEncoder
from mmspec.vision.shapes.tokenizer import ShapesTokenizer


def count_table(tokens: torch.Tensor, gpt: LlamaGenGPT) -> NGramTokenTable:
    """The most likely token for each pair of neighbors in training tokens [n, N]."""
    table = NGramTokenTable(gpt.config.vocab_size)
    table.best.copy_(NGramTable.count(tokens, gpt.config.grid_size, gpt.config.vocab_size).best)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RUNS)
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="folder of the parts and of the index")
    parser.add_argument("--guidance", type=float, default=GUIDANCE, help="the pipeline's default")
    parser.add_argument("--temperature", type=float, default=TEMPERATURE, help="likewise")
    args = parser.parse_args()
    draft = args.weights / "draft_transformer"
    saved = json.loads((args.weights / "transformer" / "config.json").read_text(encoding="utf-8"))
    kind = LlamaGenBlockGPT if saved["_class_name"] == LlamaGenBlockGPT.saved_as else LlamaGenGPT
    gpt = kind.from_pretrained(args.weights / "transformer")
    table = None  # an n-gram table follows single tokens
    if isinstance(gpt, LlamaGenGPT):
        table = count_table(load_codes(args.out).tokens, gpt)
        export(table, args.weights / "table")
    pipe = LlamaGenPipeline(
        gpt,
        ShapesTokenizer.from_pretrained(args.weights / "vqvae"),
        ShapesTextEncoder.from_pretrained(args.weights / "text_encoder"),
        draft_transformer=kind.from_pretrained(draft) if draft.is_dir() else None,
        table=table,
        temperature=args.temperature,
        guidance_scale=args.guidance,
    )
    pipe.save_config(args.weights)


if __name__ == "__main__":
    main()
