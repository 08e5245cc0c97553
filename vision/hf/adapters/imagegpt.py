"""ImageGPT: nothing in; colours out, each one of the clusters in its image processor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.errors import ModelError, PromptError
from mmspec.vision.hf.image_adapter import Components, DecodingJob, default_sampling
from mmspec.vision.hf.image_request import ImageRequest, refuse_options

# The model card's.
TOP_K = 40


class ImageGPTAdapter:
    """An ImageGPT; with its `ImageGPTImageProcessor`, which holds the colours, there are images."""

    def __init__(self, model: Any, components: Components) -> None:
        components.refuse(model)
        self._model = model
        self._clusters = getattr(components.processor, "clusters", None)
        self.no_pixels = (
            "the colours lie in the image processor; pass processor=ImageGPTImageProcessor.from_pretrained(...)"
            if self._clusters is None
            else None
        )
        self.sampling = default_sampling(model, top_k=TOP_K)
        self.room = int(model.config.n_positions) + 1

    def job(self, request: ImageRequest) -> DecodingJob:
        refuse_options(self._model, request, "negative_prompt", "height", "width")
        for prompt in request.prompts:
            if prompt:
                raise PromptError(f"prompt={prompt!r} is not allowed: ImageGPT draws without one; leave it out, or ''")
        length = int(self._model.config.n_positions)
        side = math.isqrt(length)
        if side * side != length:
            raise ModelError(f"model.config.n_positions={length} is no square number, so that there is no image")
        start = torch.full((len(request.prompts), 1), int(self._model.config.vocab_size) - 1)
        arguments = {"input_ids": start, "attention_mask": torch.ones_like(start)}
        return DecodingJob(arguments, length, 1 + torch.arange(length), (side, side))

    def codes(self, tokens: Tensor) -> Tensor:
        return tokens

    def pixels(self, codes: Tensor, grid: tuple[int, int]) -> NDArray[np.uint8]:
        colours = np.asarray(self._clusters)[codes.cpu().numpy()]
        return np.rint(127.5 * (colours + 1)).astype(np.uint8).reshape(len(codes), *grid, 3)
