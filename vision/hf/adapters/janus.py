"""Janus and Janus-Pro: the codes of the model's VQ model after a chat of one turn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.vision.hf.decoding.janus import DEFAULT_SCALE
from mmspec.vision.hf.image_adapter import Components, DecodingJob, default_sampling, eight_bit
from mmspec.vision.hf.image_request import ImageRequest, chat, refuse_empty, refuse_options


class JanusAdapter:
    """A Janus. All images have the size that the model was trained on.

    Args:
        model: A `JanusForConditionalGeneration`.
        components: A `JanusProcessor`.

    Raises:
        ArgumentError: If the processor is missing, or there is a component that Janus does not have.
    """

    no_pixels = None

    def __init__(self, model: Any, components: Components) -> None:
        components.refuse_chameleon_components(model)
        self._model = model
        self._processor = components.require_processor(model, "JanusProcessor")
        self.sampling = default_sampling(model, DEFAULT_SCALE)
        self.max_length = int(model.config.get_text_config().max_position_embeddings)

    def job(self, request: ImageRequest) -> DecodingJob:
        refuse_options(self._model, request, "negative_prompt", "height", "width")
        refuse_empty(request.prompts)
        texts = self._processor.apply_chat_template(chat(self._processor, request.prompts), add_generation_prompt=True)
        inputs = self._processor(
            text=texts, generation_mode="image", padding=True, padding_side="left", return_tensors="pt"
        )
        length = int(self._model.model.vision_model.config.num_image_tokens)
        side = math.isqrt(length)
        arguments = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
        return DecodingJob(arguments, length, torch.arange(length), (side, side))

    def codes(self, tokens: Tensor) -> Tensor:
        return tokens

    def pixels(self, codes: Tensor, grid: tuple[int, int]) -> NDArray[np.uint8]:
        # Channels first: without torchvision, transformers' processor misinterprets channels in the last axis.
        pixels = self._model.decode_image_tokens(codes).permute(0, 3, 1, 2)
        images = self._processor.postprocess(list(pixels.float().cpu()), return_tensors="PIL.Image.Image")
        return eight_bit(images["pixel_values"])
