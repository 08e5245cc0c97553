"""GLM-Image's autoregressive stage: a small and a large grid of codes after a chat of one turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.errors import ArgumentError
from mmspec.sampling.params import SamplingParams
from mmspec.vision.hf.image_adapter import TOP_K, AllowedByPosition, Components, DecodingJob, default_sampling
from mmspec.vision.hf.image_request import ImageRequest, chat, check_size, refuse_empty, refuse_negative_prompt

# Pixels per code of the large grid, fixed in transformers' processor.
FACTOR = 32


class GlmAdapter:
    """The first stage of GLM-Image. Its output is the codes of the large grid.

    The codes, each repeated 2 x 2 times, are the `prior_token_ids` of diffusers' `GlmImagePipeline`, whose second stage
    generates pixels.

    Args:
        model: A `GlmImageForConditionalGeneration`.
        components: A `GlmImageProcessor`.

    Raises:
        ArgumentError: If the processor is missing, or there is a component that GLM-Image does not have.
    """

    no_pixels = (
        "the second stage of GLM-Image, diffusers' GlmImagePipeline, generates pixels; use output_type='latent', or "
        "call mmspec.accelerate on that pipeline as examples/glm_image.py does"
    )

    def __init__(self, model: Any, components: Components) -> None:
        components.refuse_chameleon_components(model)
        self._model = model
        self._processor = components.require_processor(model, "GlmImageProcessor")
        self.sampling = default_sampling(model, SamplingParams(top_k=TOP_K))
        self.codebook_size = int(model.config.vq_config.num_embeddings)
        self.max_length = int(model.config.get_text_config().max_position_embeddings)

    def job(self, request: ImageRequest) -> DecodingJob:
        refuse_negative_prompt(self._model, request)
        refuse_empty(request.prompts)
        size = check_size(request.height, request.width, FACTOR)
        sizes = {} if size is None else {"target_h": size[0], "target_w": size[1]}
        texts = self._processor.apply_chat_template(chat(self._processor, request.prompts))
        inputs = self._processor(text=texts, padding=True, padding_side="left", return_tensors="pt", **sizes)
        (_, height, width), (_, low, narrow) = inputs["image_grid_thw"][:2].tolist()
        small, large = low * narrow, height * width
        config = self._model.config
        start = inputs["input_ids"].shape[1]
        codes = list(range(config.vq_config.num_embeddings))
        # The lines of the two grids differ in length, so there is no common width.
        allowed = AllowedByPosition([codes] * (small + large) + [[config.image_end_token_id]], start)
        names = ("input_ids", "attention_mask", "image_grid_thw", "images_per_sample")
        arguments = {name: inputs[name] for name in names} | {"prefix_allowed_tokens_fn": allowed}
        return DecodingJob(arguments, small + large + 1, small + torch.arange(large), (height, width))

    def grid(self, height: int | None, width: int | None) -> tuple[int, int]:
        raise ArgumentError(self.no_pixels)

    def codes(self, tokens: Tensor) -> Tensor:
        return tokens

    def pixels(self, codes: Tensor, grid: tuple[int, int]) -> NDArray[np.uint8]:
        raise ArgumentError(self.no_pixels)
