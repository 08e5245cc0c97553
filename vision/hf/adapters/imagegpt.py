"""ImageGPT: unconditional images whose tokens are colors, the clusters of its image processor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.errors import ModelError, PromptError
from mmspec.sampling.params import SamplingParams
from mmspec.vision.hf.image_adapter import Components, DecodingJob, default_sampling
from mmspec.vision.hf.image_request import ImageRequest, refuse_negative_prompt, refuse_size

# As the model card samples.
PUBLISHED = SamplingParams(top_k=40)


class ImageGPTAdapter:
    """An ImageGPT.

    Args:
        model: An `ImageGPTForCausalImageModeling`.
        components: For pixels an `ImageGPTImageProcessor`, which contains the colors.

    Raises:
        ArgumentError: If there is a component that ImageGPT does not have.
    """

    def __init__(self, model: Any, components: Components) -> None:
        components.refuse_chameleon_components(model)
        self._model = model
        self._clusters = getattr(components.processor, "clusters", None)
        self.no_pixels = (
            "the image processor, which contains the colors, is missing; "
            "pass processor=ImageGPTImageProcessor.from_pretrained(...)"
            if self._clusters is None
            else None
        )
        self.sampling = default_sampling(model, PUBLISHED)
        # The last id begins an image.
        self.codebook_size = int(model.config.vocab_size) - 1
        self.max_length = int(model.config.n_positions) + 1

    def job(self, request: ImageRequest) -> DecodingJob:
        refuse_negative_prompt(self._model, request)
        grid = self.grid(request.height, request.width)
        for prompt in request.prompts:
            if prompt:
                raise PromptError(
                    f"prompt={prompt!r} is not allowed; ImageGPT takes no prompt: leave it out, or pass ''"
                )
        length = int(self._model.config.n_positions)
        start = torch.full((len(request.prompts), 1), int(self._model.config.vocab_size) - 1)
        arguments = {"input_ids": start, "attention_mask": torch.ones_like(start)}
        return DecodingJob(arguments, length, torch.arange(length), grid)

    def grid(self, height: int | None, width: int | None) -> tuple[int, int]:
        refuse_size(self._model, height, width)
        length = int(self._model.config.n_positions)
        side = math.isqrt(length)
        if side * side != length:
            raise ModelError(f"model.config.n_positions={length} is not a square number")
        return side, side

    def codes(self, tokens: Tensor) -> Tensor:
        return tokens

    def pixels(self, codes: Tensor, grid: tuple[int, int]) -> NDArray[np.uint8]:
        colors = np.asarray(self._clusters)[codes.cpu().numpy()]
        return np.rint(127.5 * (colors + 1)).astype(np.uint8).reshape(len(codes), *grid, 3)
