"""GLM-Image, as in diffusers' documentation; its first stage, which writes the image's tokens, runs by a recipe."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

import mmspec

MODEL = "zai-org/GLM-Image"


def main(pipe: Any = None) -> None:
    """Writes glm_image.png; `pipe` stands in for the published pipeline."""
    if pipe is None:
        from diffusers import GlmImagePipeline

        pipe = GlmImagePipeline.from_pretrained(MODEL, torch_dtype=torch.bfloat16)
        pipe.to("cuda")

    writer = pipe.vision_language_encoder
    writer.generate = partial(writer.generate, custom_generate=mmspec.generate, recipe="scd")

    image = pipe("A photo of an astronaut riding a horse on mars").images[0]
    image.save("glm_image.png")


if __name__ == "__main__":
    main()
