"""GLM-Image, as in diffusers' documentation, with a recipe for its first stage, which generates the image's tokens."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

import mmspec

MODEL = "zai-org/GLM-Image"


def main(pipe: Any = None) -> None:
    """Writes glm_image.png; `pipe` replaces the published pipeline."""
    if pipe is None:
        from diffusers import GlmImagePipeline

        pipe = GlmImagePipeline.from_pretrained(MODEL, torch_dtype=torch.bfloat16)
        pipe.to("cuda")

    stage = pipe.vision_language_encoder
    stage.generate = partial(stage.generate, custom_generate=mmspec.generate, recipe="scd")

    image = pipe("A photo of an astronaut riding a horse on mars").images[0]
    image.save("glm_image.png")


if __name__ == "__main__":
    main()
