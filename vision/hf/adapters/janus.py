"""Janus and Janus-Pro: the codes of the model's VQ model after a chat of one turn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.sampling.params import SamplingParams
from mmspec.vision.hf.decoding.janus import DEFAULT_SCALE
from mmspec.vision.hf.image_adapter import Components, DecodingJob, default_sampling, eight_bit
from mmspec.vision.hf.image_request import ImageRequest, chat, refuse_empty, refuse_negative_prompt, refuse_size

# As DeepSeek's generation_inference.py samples.
PUBLISHED = SamplingParams(guidance_scale=DEFAULT_SCALE)


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
        tokenizer, config = self._processor.tokenizer, model.generation_config
        # Guidance needs them; a folder without generation_config.json has them in its tokenizer only.
        if getattr(config, "generation_kwargs", None) is None:
            config.generation_kwargs = {
                "boi_token_id": tokenizer.convert_tokens_to_ids(self._processor.image_start_token)
            }
        for name in ("pad_token_id", "bos_token_id"):
            if getattr(config, name) is None:
                setattr(config, name, getattr(tokenizer, name))
        self.sampling = default_sampling(model, PUBLISHED)
        self.codebook_size = int(model.config.vq_config.num_embeddings)
        self.max_length = int(model.config.get_text_config().max_position_embeddings)

    def job(self, request: ImageRequest) -> DecodingJob:
        refuse_negative_prompt(self._model, request)
        grid = self.grid(request.height, request.width)
        refuse_empty(request.prompts)
        texts = self._processor.apply_chat_template(chat(self._processor, request.prompts), add_generation_prompt=True)
        inputs = self._processor(
            text=texts, generation_mode="image", padding=True, padding_side="left", return_tensors="pt"
        )
        length = int(self._model.model.vision_model.config.num_image_tokens)
        arguments = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
        return DecodingJob(arguments, length, torch.arange(length), grid)

    def grid(self, height: int | None, width: int | None) -> tuple[int, int]:
        refuse_size(self._model, height, width)
        side = math.isqrt(int(self._model.model.vision_model.config.num_image_tokens))
        return side, side

    def codes(self, tokens: Tensor) -> Tensor:
        return tokens

    def pixels(self, codes: Tensor, grid: tuple[int, int]) -> NDArray[np.uint8]:
        # Channels first: without torchvision, transformers' processor misinterprets channels in the last axis.
        pixels = self._model.decode_image_tokens(codes).permute(0, 3, 1, 2)
        images = self._processor.postprocess(list(pixels.float().cpu()), return_tensors="PIL.Image.Image")
        return eight_bit(images["pixel_values"])
