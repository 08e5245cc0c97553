"""X-Omni: a prompt, the size of the image, and its codes; a diffusion model that is not part of mmspec draws them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.arguments import shown
from mmspec.errors import ArgumentError, ModelError
from mmspec.sampling.params import SamplingParams
from mmspec.vision.hf.flat_formats import token_id
from mmspec.vision.hf.image_adapter import TOP_K, AllowedByPosition, Components, DecodingJob
from mmspec.vision.hf.image_request import ImageRequest, check_size, refuse_empty, refuse_negative_prompt

FACTOR = 16  # pixels per code
GRID = (72, 72)
# As generate.py of X-Omni-Team/X-Omni (Apache 2.0) samples, with the top-k that transformers 4 adds.
PUBLISHED = SamplingParams(top_k=TOP_K, min_p=0.03)
NO_PIXELS = (
    "X-Omni's codes are drawn by a diffusion model (FLUX.1 with features of the codes) that is not part of mmspec; use "
    "output_type='latent' and pass the tokens to the original code"
)


class XOmniAdapter:
    """An X-Omni.

    Args:
        model: A `mmspec.vision.hf.xomni.XOmniForCausalLM`.
        components: Its tokenizer.

    Raises:
        ArgumentError: If the tokenizer is missing, or there is a component that X-Omni does not have.
        ModelError: If tokenizer and model have different ids for codes, or the config names other marks.
    """

    no_pixels = NO_PIXELS

    def __init__(self, model: Any, components: Components) -> None:
        components.refuse_chameleon_components(model)
        self._model, config = model, model.config
        self._tokenizer = components.require_processor(model, "PreTrainedTokenizerBase")
        self._first = int(config.vocab_size)
        self.codebook_size = int(config.image_vocab_size)
        self.sampling = PUBLISHED
        self.max_length = int(config.max_position_embeddings)
        special = config.mm_special_tokens
        if not isinstance(special, (list, tuple)) or len(special) != 3 or not all(isinstance(m, str) for m in special):
            raise ModelError(f"the model's config has mm_special_tokens={shown(special)}; they must be three marks")
        self._begin, _, self._codes = special
        marks = [token_id(self._tokenizer, mark) - self._first for mark in (self._begin, self._codes)]
        found = token_id(self._tokenizer, "<MM-Token-0>") - self._first
        if found != 0 or not all(self.codebook_size <= mark < config.mm_vocab_size for mark in marks):
            ids = [mark + self._first for mark in (found, *marks)]
            raise ModelError(
                f"processor has code 0 and the marks {self._begin} and {self._codes} as ids {ids}; the model has "
                f"{self.codebook_size} codes from {self._first} on, then marks: they do not belong together"
            )

    def job(self, request: ImageRequest) -> DecodingJob:
        refuse_negative_prompt(self._model, request)
        refuse_empty(request.prompts)
        height, width = self.grid(request.height, request.width)
        size = f"{self._begin}{height} {width}{self._codes}"
        encoded = self._tokenizer(
            [text + size for text in request.prompts], padding=True, padding_side="left", return_tensors="pt"
        )
        arguments: dict[str, Any] = {name: encoded[name] for name in ("input_ids", "attention_mask")}
        codes = range(self._first, self._first + self.codebook_size)
        prompt = encoded["input_ids"].shape[1]
        arguments["prefix_allowed_tokens_fn"] = AllowedByPosition([codes] * (height * width), prompt, width)
        if request.guided:
            negative = self._tokenizer(size, add_special_tokens=False, return_tensors="pt")["input_ids"]
            arguments["negative_prompt_ids"] = negative.expand(len(request.prompts), -1)
        return DecodingJob(arguments, height * width, torch.arange(height * width), (height, width))

    def grid(self, height: int | None, width: int | None) -> tuple[int, int]:
        pixels = check_size(height, width, FACTOR)
        return GRID if pixels is None else (pixels[0] // FACTOR, pixels[1] // FACTOR)

    def codes(self, tokens: Tensor) -> Tensor:
        return tokens - self._first

    def pixels(self, codes: Tensor, grid: tuple[int, int]) -> NDArray[np.uint8]:
        raise ArgumentError(NO_PIXELS)
