"""Emu3: the prompt ends with the size of the image; the image is lines of codes with line ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.vision.hf.image_adapter import AllowedByPosition, Components, DecodingJob, default_sampling, eight_bit
from mmspec.vision.hf.image_request import ImageRequest, refuse_empty, size_of

GUIDANCE_SCALE = 3.0
# Pixels per token, fixed in transformers' processor.
FACTOR = 8
# The negative prompt of the model's documentation.
NEGATIVE = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, worst quality, "
    "low quality, normal quality, jpeg artifacts, signature, watermark, username, blurry."
)


class Emu3Adapter:
    """An Emu3.

    Args:
        model: An `Emu3ForConditionalGeneration`.
        components: An `Emu3Processor`.

    Raises:
        ArgumentError: If the processor is missing, or there is a component that Emu3 does not have.
    """

    no_pixels = None

    def __init__(self, model: Any, components: Components) -> None:
        components.refuse_chameleon_components(model)
        self._model = model
        self._processor = components.require_processor(model, "Emu3Processor")
        self.sampling = default_sampling(model, GUIDANCE_SCALE)
        self.max_length = int(model.config.get_text_config().max_position_embeddings)

    def job(self, request: ImageRequest) -> DecodingJob:
        refuse_empty(request.prompts)
        size = size_of(request, FACTOR)
        sizes = {} if size is None else {"ratio": f"{size[1]}:{size[0]}", "image_area": size[0] * size[1]}
        inputs = self._processor(
            text=list(request.prompts),
            padding=True,
            padding_side="left",
            return_tensors="pt",
            return_for_image_generation=True,
            **sizes,
        )
        height, width = (int(side) for side in inputs["image_sizes"][0])
        ids, tokenizer = inputs["input_ids"], self._processor.tokenizer
        mapping = self._model.model.vocabulary_mapping
        line = [mapping.image_tokens] * width + [[mapping.eol_token_id]]
        ends = [[tokenizer.eof_token_id], [tokenizer.eoi_token_id], [tokenizer.eos_token_id]]
        length = height * (width + 1) + 3
        arguments: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": inputs["attention_mask"],
            "prefix_allowed_tokens_fn": AllowedByPosition(line * height + ends, ids.shape[1], width + 1),
        }
        if request.guided:
            text = NEGATIVE if request.negative_prompt is None else request.negative_prompt
            negative = self._processor(text=[text] * len(ids), padding=True, return_tensors="pt")
            arguments["negative_prompt_ids"] = negative["input_ids"]
            arguments["negative_prompt_attention_mask"] = negative["attention_mask"]
        codes = torch.arange(height * (width + 1)).view(height, width + 1)[:, :width].flatten()
        return DecodingJob(arguments, length, ids.shape[1] + codes, (height, width))

    def codes(self, tokens: Tensor) -> Tensor:
        table: Tensor = self._model.model.vocabulary_mapping.bpe2img_mapping_tensor
        return table[tokens.cpu()].long().to(tokens.device)

    def pixels(self, codes: Tensor, grid: tuple[int, int]) -> NDArray[np.uint8]:
        pixels = self._model.model.vqmodel.decode(codes.unflatten(1, grid))
        images = self._processor.postprocess(list(pixels.float().cpu()), return_tensors="PIL.Image.Image")
        return eight_bit(images["pixel_values"])
