"""Emu3: the prompt ends with the size of the image; the image is lines of codes with line ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.arguments import processor_errors
from mmspec.sampling.params import SamplingParams
from mmspec.vision.hf.flat_formats import EMU3_NEGATIVE
from mmspec.vision.hf.image_adapter import AllowedByPosition, Components, DecodingJob, default_sampling, eight_bit
from mmspec.vision.hf.image_request import ImageRequest, check_size, refuse_empty

# As BAAI's image_generation.py samples.
PUBLISHED = SamplingParams(top_k=2048, guidance_scale=3.0)
# Pixels per token, fixed in transformers' processor.
FACTOR = 8


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
        self.sampling = default_sampling(model, PUBLISHED)
        self.codebook_size = int(model.config.vq_config.codebook_size)
        self.max_length = int(model.config.get_text_config().max_position_embeddings)

    def job(self, request: ImageRequest) -> DecodingJob:
        refuse_empty(request.prompts)
        height, width = self.grid(request.height, request.width)
        sizes = {"ratio": f"{width}:{height}", "image_area": height * width * FACTOR**2}
        inputs = self._encode(request.prompts, sizes)
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
            # As in the original, both sides end with the beginning of the image, so that they differ in the text only.
            texts = [EMU3_NEGATIVE] * len(ids) if request.negative_prompts is None else request.negative_prompts
            with processor_errors("negative_prompt", texts[0]):
                negative = self._encode(texts, sizes)
            arguments["negative_prompt_ids"] = negative["input_ids"]
            arguments["negative_prompt_attention_mask"] = negative["attention_mask"]
        codes = torch.arange(height * (width + 1)).view(height, width + 1)[:, :width].flatten()
        return DecodingJob(arguments, length, codes, (height, width))

    def grid(self, height: int | None, width: int | None) -> tuple[int, int]:
        pixels = check_size(height, width, FACTOR)
        if pixels is not None:
            return pixels[0] // FACTOR, pixels[1] // FACTOR
        rows, columns = self._encode([""], {})["image_sizes"][0]
        return int(rows), int(columns)

    def _encode(self, texts: Sequence[str], sizes: Mapping[str, Any]) -> Any:
        """Ids of texts, each followed by the size of the image and its beginning."""
        return self._processor(
            text=list(texts),
            padding=True,
            padding_side="left",
            return_tensors="pt",
            return_for_image_generation=True,
            **sizes,
        )

    def codes(self, tokens: Tensor) -> Tensor:
        table: Tensor = self._model.model.vocabulary_mapping.bpe2img_mapping_tensor
        return table[tokens.cpu()].long().to(tokens.device)

    def pixels(self, codes: Tensor, grid: tuple[int, int]) -> NDArray[np.uint8]:
        pixels = self._model.model.vqmodel.decode(codes.unflatten(1, grid))
        images = self._processor.postprocess(list(pixels.float().cpu()), return_tensors="PIL.Image.Image")
        return eight_bit(images["pixel_values"])
