"""Flat image models, decoders of text whose vocabulary has codes: SimpleAR, Liquid, Emu3, Emu3.5, Lumina-mGPT 2.0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.arguments import processor_errors
from mmspec.errors import ModelError
from mmspec.hf.plan import logits_size
from mmspec.sampling.params import SamplingParams
from mmspec.vision.hf.flat_formats import format_of, token_id
from mmspec.vision.hf.image_adapter import AllowedByPosition, Components, DecodingJob
from mmspec.vision.hf.image_request import ImageRequest, check_size, refuse_empty, refuse_negative_prompt, refuse_size
from mmspec.vision.llamagen.codes import codebook_size, decode_tokens


class FlatImageAdapter:
    """A decoder of transformers that writes images in a flat format; see `mmspec.vision.hf.flat_formats`.

    Tokens that are no codes are excluded where a code is due. The original code of SimpleAR leaves them in, and reads
    them as the nearest code.

    Args:
        model: A causal language model.
        components: Its tokenizer, the layout, and for pixels the decoder of its codes.

    Raises:
        ArgumentError: If the layout is unknown, or the tokenizer is missing.
        ModelError: If tokenizer, decoder and model have different numbers of codes.
    """

    def __init__(self, model: Any, components: Components) -> None:
        self._model = model
        self._format = format_of(components.layout, model)
        self._tokenizer = components.require_processor(model, "PreTrainedTokenizerBase")
        self._vqvae = components.vqvae
        self._first = self._format.first_id(self._tokenizer)
        # A vocabulary may have room for more ids than there are codes.
        self.codebook_size = min(self._format.codes, logits_size(model.lm_head) - self._first)
        if self.codebook_size < 1:
            raise ModelError(
                f"processor has {len(self._tokenizer)} ids, the model {logits_size(model.lm_head)}: there is no room "
                "for codes; they do not belong together"
            )
        if self._vqvae is not None and codebook_size(self._vqvae) != self.codebook_size:
            raise ModelError(
                f"tokenizer has {codebook_size(self._vqvae)} codes, the model {self.codebook_size}; "
                "they do not belong together"
            )
        self.sampling: SamplingParams = self._format.sampling
        self.max_length = int(model.config.max_position_embeddings)
        self.no_pixels = (
            f"the decoder of the codes is a file of its own; load the model with tokenizer= {self._format.decoder}"
            if self._vqvae is None
            else None
        )

    def job(self, request: ImageRequest) -> DecodingJob:
        if self._format.negative is None:
            refuse_negative_prompt(self._model, request)
        refuse_empty(request.prompts)
        height, width = self.grid(request.height, request.width)
        size: dict[str, Any] = self._format.size(height, width)
        # What the original code of Lumina-mGPT 2.0 puts before a text, if the tokenizer has no mark of a beginning.
        size["begin"] = self._tokenizer.bos_token or self._tokenizer.eos_token
        encoded = self._encode([self._format.prompt.format(prompt=text, **size) for text in request.prompts])
        ids = encoded["input_ids"]
        places, allowed, line = self.lines((height, width))
        arguments: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": encoded["attention_mask"],
            "prefix_allowed_tokens_fn": AllowedByPosition(allowed, ids.shape[1], line),
        }
        if request.guided:
            negatives = request.negative_prompts or [self._format.negative or ""] * len(ids)
            texts = [self._format.unconditional.format(negative=text, **size) for text in negatives]
            with processor_errors("negative_prompt", negatives[0]):
                negative = self._encode(texts)
            arguments["negative_prompt_ids"] = negative["input_ids"]
            arguments["negative_prompt_attention_mask"] = negative["attention_mask"]
        return DecodingJob(arguments, len(allowed), places, (height, width))

    def lines(self, grid: tuple[int, int]) -> tuple[Tensor, list[Sequence[int]], int]:
        """The tokens of an image of some rows and columns of codes.

        Returns:
            Positions of the codes int64 [h * w]; the ids that are allowed at each position; tokens per line.
        """
        height, width = grid
        codes = range(self._first, self._first + self.codebook_size)
        line: list[Sequence[int]] = [codes] * width
        if self._format.line_end is not None:
            line = [*line, [token_id(self._tokenizer, self._format.line_end)]]
        # The last line has no end: what follows it is not part of the image.
        allowed = (line * height)[: height * len(line) - (len(line) - width)]
        places = torch.arange(height * len(line)).view(height, len(line))[:, :width].flatten()
        return places, allowed, len(line)

    def grid(self, height: int | None, width: int | None) -> tuple[int, int]:
        if not self._format.any_size:
            refuse_size(self._model, height, width)
        pixels = check_size(height, width, self._format.factor * self._format.unit)
        return (
            self._format.grid
            if pixels is None
            else (pixels[0] // self._format.factor, pixels[1] // self._format.factor)
        )

    def _encode(self, texts: list[str]) -> Any:
        return self._tokenizer(
            texts,
            padding=True,
            padding_side="left",
            return_tensors="pt",
            add_special_tokens=self._format.special_tokens,
        )

    def codes(self, tokens: Tensor) -> Tensor:
        return tokens - self._first

    def pixels(self, codes: Tensor, grid: tuple[int, int]) -> NDArray[np.uint8]:
        floats = decode_tokens(self._vqvae, codes.to(self._vqvae.device), grid).float()
        pixels = (floats.clamp(-1, 1) + 1) * 127.5
        pixels = (pixels.round() if self._format.rounded else pixels).byte()
        return pixels.permute(0, 2, 3, 1).cpu().numpy()
