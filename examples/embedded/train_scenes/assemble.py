"""Counts the n-gram table and writes the index of the pipeline, which joins the exported parts.

Command: python -m train_scenes.assemble --out runs/scenes        (after gpt, whose codes are counted)
"""

from __future__ import annotations

import argparse
from pathlib import Path

from train_scenes.config import RUNS
from train_scenes.data import training_set
from train_shapes.assemble import count_table
from train_shapes.export import export

from mmspec.vision.llamagen.gpt import LlamaGenGPT
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline
from mmspec.vision.scenes.config import GUIDANCE, TEMPERATURE, WEIGHTS
from mmspec.vision.scenes.text import ScenesTextEncoder
from mmspec.vision.shapes.tokenizer import ShapesTokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RUNS)
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="folder of the parts and of the index")
    parser.add_argument("--guidance", type=float, default=GUIDANCE, help="the pipeline's default")
    parser.add_argument("--temperature", type=float, default=TEMPERATURE, help="likewise")
    args = parser.parse_args()
    draft = args.weights / "draft_transformer"
    gpt = LlamaGenGPT.from_pretrained(args.weights / "transformer")
    tokenizer = ShapesTokenizer.from_pretrained(args.weights / "vqvae")
    table = count_table(training_set(tokenizer, args.out).tokens, gpt)
    export(table, args.weights / "table")
    export(ScenesTextEncoder(), args.weights / "text_encoder")
    pipe = LlamaGenPipeline(
        gpt,
        tokenizer,
        ScenesTextEncoder.from_pretrained(args.weights / "text_encoder"),
        draft_transformer=LlamaGenGPT.from_pretrained(draft) if draft.is_dir() else None,
        table=table,
        temperature=args.temperature,
        guidance_scale=args.guidance,
    )
    pipe.save_config(args.weights)


if __name__ == "__main__":
    main()
