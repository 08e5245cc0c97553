"""GLM-Image, as in diffusers' documentation, with a recipe for its first stage, which generates the image's tokens."""

from __future__ import annotations

from typing import Any

import torch

import mmspec

MODEL = "zai-org/GLM-Image"


def main(pipe: Any = None, side: int = 1024) -> None:
    """Writes glm_image.png.

    Args:
        pipe: Replaces the published pipeline.
        side: Height and width in pixels.
    """
    if pipe is None:
        from diffusers import GlmImagePipeline

        pipe = GlmImagePipeline.from_pretrained(MODEL, torch_dtype=torch.bfloat16)
        pipe.to("cuda")

    mmspec.accelerate(pipe, "scd")

    # The processor needs the size, in multiples of 32 pixels.
    image = pipe("A photo of an astronaut riding a horse on mars", height=side, width=side).images[0]
    image.save("glm_image.png")


if __name__ == "__main__":
    main()
