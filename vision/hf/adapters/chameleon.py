"""Anole and Lumina-mGPT, tuned from Chameleon: image tokens of the text vocabulary, in one of two layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.errors import ArgumentError, ModelError, did_you_mean
from mmspec.sampling.params import SamplingParams
from mmspec.vision.hf.adapters.flat import FlatImageAdapter
from mmspec.vision.hf.decoding.chameleon import ChameleonIds, ImageConstraint
from mmspec.vision.hf.flat_formats import FORMATS
from mmspec.vision.hf.image_adapter import Components, DecodingJob, ImageAdapter, default_sampling
from mmspec.vision.hf.image_request import ImageRequest, check_size, refuse_empty, refuse_negative_prompt, refuse_size
from mmspec.vision.llamagen.codes import codebook_size, decode_tokens

LAYOUTS = ("anole", "lumina", "lumina2")  # the last is a flat format
# As the original code samples images: Anole's chameleon/inference, Lumina-mGPT's inference_solver.
PUBLISHED = {
    "anole": SamplingParams(temperature=0.7, top_p=0.9, guidance_scale=3.0),
    "lumina": SamplingParams(top_k=2000, guidance_scale=3.0),
}
# Lumina-mGPT's default rows and columns of codes, for 768 pixels.
LUMINA_GRID = 48


def chameleon_adapter(model: Any, components: Components) -> ImageAdapter:
    """The adapter of a Chameleon: Lumina-mGPT 2.0 writes images in a flat format, the others as Chameleon does."""
    return (FlatImageAdapter if components.layout in FORMATS else ChameleonAdapter)(model, components)


class ChameleonAdapter:
    """A Chameleon that was tuned to generate images.

    With the layout "anole", the default, images are squares of the VQGAN's resolution, and the unconditional prompt is
    begin-of-text and begin-of-image. With "lumina" images have any size, which is written before the codes, and line
    ends; the unconditional prompt is begin-of-image.

    Args:
        model: A `ChameleonForConditionalGeneration`.
        components: A `ChameleonProcessor`; for pixels the VQGAN (see `mmspec.vision.hf.vqgan.load_vqgan`); the layout.

    Raises:
        ArgumentError: If the layout is unknown, or the processor is missing.
        ModelError: If model and VQGAN have different numbers of codes.
    """

    def __init__(self, model: Any, components: Components) -> None:
        layout = components.layout or LAYOUTS[0]
        if layout not in LAYOUTS:
            raise ArgumentError(
                f"layout={layout!r} is not allowed{did_you_mean(layout, LAYOUTS)}; use one of {', '.join(LAYOUTS)}"
            )
        self._model = model
        self._processor = components.require_processor(model, "ChameleonProcessor")
        self._vqvae = components.vqvae
        self._lumina = layout == "lumina"
        self._ids = ChameleonIds.of(model)
        vq = model.config.vq_config
        self._factor = 2 ** (len(vq.channel_multiplier) - 1)
        self._side = vq.resolution // self._factor
        if self._vqvae is not None and codebook_size(self._vqvae) != vq.num_embeddings:
            raise ModelError(
                f"tokenizer has {codebook_size(self._vqvae)} codes, the model {vq.num_embeddings}; "
                "they do not belong together"
            )
        self.sampling = default_sampling(model, PUBLISHED[layout])
        self.codebook_size = int(vq.num_embeddings)
        self.max_length = int(model.config.max_position_embeddings)
        self.no_pixels = (
            "transformers has no decoder for Chameleon's codes; load the model with tokenizer='vqgan.ckpt', a file of "
            "Meta's release (or write both to one folder: mmspec convert MODEL --tokenizer vqgan.ckpt -o FOLDER)"
            if self._vqvae is None
            else None
        )

    def job(self, request: ImageRequest) -> DecodingJob:
        refuse_negative_prompt(self._model, request)
        refuse_empty(request.prompts)
        height, width = self.grid(request.height, request.width)
        if self._lumina:
            size = f"{width * self._factor}x{height * self._factor}"
            instruction = f"Generate an image of {size} according to the following prompt:\n"
            constraint = ImageConstraint.lumina(self._model, height, width, self._ids)
            codes = 2 + torch.arange(height * (width + 1)).view(height, width + 1)[:, :width].flatten()
        else:
            instruction = ""
            constraint = ImageConstraint.anole(self._model, self._side, self._ids)
            codes = torch.arange(self._side**2)
        # The tokenizer, because the processor ends the turn in some modes only.
        tokenizer = self._processor.tokenizer
        texts = [instruction + prompt for prompt in request.prompts]
        encoded = tokenizer(texts, padding=True, padding_side="left", return_tensors="pt")
        suffix = torch.tensor([[self._ids.stop, self._ids.begin]]).expand(len(texts), -1)
        ids = torch.cat([encoded["input_ids"], suffix], dim=1)
        mask = torch.cat([encoded["attention_mask"], torch.ones_like(suffix)], dim=1)
        arguments = {"input_ids": ids, "attention_mask": mask, "prefix_allowed_tokens_fn": constraint}
        if request.guided and not self._lumina:
            start = [tokenizer.bos_token_id, self._ids.begin]
            arguments["negative_prompt_ids"] = torch.tensor([start]).expand(len(texts), -1)
        return DecodingJob(arguments, constraint.length, codes, (height, width))

    def grid(self, height: int | None, width: int | None) -> tuple[int, int]:
        if not self._lumina:
            refuse_size(self._model, height, width)
            return self._side, self._side
        pixels = check_size(height, width, 2 * self._factor)
        return (LUMINA_GRID, LUMINA_GRID) if pixels is None else (pixels[0] // self._factor, pixels[1] // self._factor)

    def codes(self, tokens: Tensor) -> Tensor:
        code_of = self._model.model.vocabulary_mapping.bpe2img
        table = torch.zeros(max(code_of) + 1, dtype=torch.int64)
        table[list(code_of)] = torch.tensor(list(code_of.values()))
        return table.to(tokens.device)[tokens]

    def pixels(self, codes: Tensor, grid: tuple[int, int]) -> NDArray[np.uint8]:
        floats = decode_tokens(self._vqvae, codes.to(self._vqvae.device), grid).float()
        pixels = ((floats.clamp(-1, 1) + 1) * 127.5).byte()
        return pixels.permute(0, 2, 3, 1).cpu().numpy()
