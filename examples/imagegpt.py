"""ImageGPT, as on its model card, with the additional argument `custom_generate`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image

import mmspec

MODEL = "openai/imagegpt-small"


def main(model: Any = None, processor: Any = None) -> None:
    """Writes imagegpt_0.png to imagegpt_7.png; `model` and `processor` replace the published ones."""
    if model is None:
        from transformers import ImageGPTForCausalImageModeling, ImageGPTImageProcessor

        processor = ImageGPTImageProcessor.from_pretrained(MODEL)
        model = ImageGPTForCausalImageModeling.from_pretrained(MODEL)

    start = torch.full((8, 1), model.config.vocab_size - 1, device=model.device)
    out = model.generate(
        input_ids=start,
        max_length=model.config.n_positions + 1,
        temperature=1.0,
        do_sample=True,
        top_k=40,
        custom_generate=mmspec.generate,
        recipe="scd",
        seed=0,
    )
    clusters = np.asarray(processor.clusters)
    height, width = processor.size["height"], processor.size["width"]
    for i, tokens in enumerate(out[:, 1:].cpu().numpy()):
        pixels = np.rint(127.5 * (clusters[tokens] + 1.0)).reshape(height, width, 3).astype(np.uint8)
        Image.fromarray(pixels).save(f"imagegpt_{i}.png")


if __name__ == "__main__":
    main()
