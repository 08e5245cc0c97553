"""Lumina-mGPT with transformers' Chameleon and mmspec's pipeline, from prompt to image."""

from __future__ import annotations

import argparse
from typing import Any

import torch

import mmspec

MODEL = "Alpha-VLLM/Lumina-mGPT-7B-768"
# Lumina-mGPT is published without its tokenizer, which is that of Chameleon.
PROCESSOR = "facebook/chameleon-7b"


def main(vqgan: str, model: Any = None, processor: Any = None, side: int = 768) -> None:
    """Writes lumina_mgpt_0.png.

    Args:
        vqgan: The path of tokenizer/vqgan.ckpt in Meta's release of Chameleon.
        model: Replaces the published model.
        processor: Replaces the published processor.
        side: Height and width in pixels.
    """
    if model is None:
        from transformers import ChameleonForConditionalGeneration, ChameleonProcessor

        processor = ChameleonProcessor.from_pretrained(PROCESSOR)
        model = ChameleonForConditionalGeneration.from_pretrained(MODEL, dtype=torch.bfloat16, device_map="auto")

    pipe = mmspec.load(model, processor=processor, tokenizer=vqgan, config={"layout": "lumina"})
    out = pipe("a red apple on a table", height=side, width=side, recipe="scd", seed=0)
    for i, image in enumerate(out.images):
        image.save(f"lumina_mgpt_{i}.png")
    print(out.stats)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("vqgan", help="tokenizer/vqgan.ckpt of Meta's release")
    main(parser.parse_args().vqgan)
