"""Anole and Lumina-mGPT: a turn of text in; image tokens of the text vocabulary out, in one of two layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.errors import ArgumentError, ModelError, did_you_mean
from mmspec.vision.hf.decoding.chameleon import Ids, ImageConstraint
from mmspec.vision.hf.image_adapter import Components, DecodingJob, default_sampling
from mmspec.vision.hf.image_request import ImageRequest, refuse_empty, refuse_options, size_of
from mmspec.vision.llamagen.tokenizer import codebook_size, decode_tokens

LAYOUTS = ("anole", "lumina")
# Both models' published samplers.
GUIDANCE_SCALE = 3.0
TOP_K = 2000
# Rows and columns of codes that Lumina-mGPT draws unless told otherwise: 768 pixels.
LUMINA_GRID = 48


class ChameleonAdapter:
    """A Chameleon tuned to draw, with its `ChameleonProcessor`, and for pixels its VQGAN (see `load_vqgan`).

    - `layout` "anole" (the default): a square of the VQGAN's resolution, guided from begin-of-text and begin-of-image.
    - `layout` "lumina": any size, written before the codes, with line ends; guided from begin-of-image on.
    """

    def __init__(self, model: Any, components: Components) -> None:
        layout = components.layout or LAYOUTS[0]
        if layout not in LAYOUTS:
            raise ArgumentError(
                f"layout={layout!r} is not allowed{did_you_mean(layout, LAYOUTS)}; use one of {', '.join(LAYOUTS)}"
            )
        self._model = model
        self._processor = components.need(model, "ChameleonProcessor")
        self._vqvae = components.vqvae
        self._lumina = layout == "lumina"
        self._ids = Ids.of(model)
        vq = model.config.vq_config
        self._factor = 2 ** (len(vq.channel_multiplier) - 1)
        self._side = vq.resolution // self._factor
        if self._vqvae is not None and codebook_size(self._vqvae) != vq.num_embeddings:
            raise ModelError(
                f"tokenizer has {codebook_size(self._vqvae)} codes, the model {vq.num_embeddings}; "
                "they do not belong together"
            )
        self.sampling = default_sampling(model, GUIDANCE_SCALE, TOP_K)
        self.room = int(model.config.max_position_embeddings)
        self.no_pixels = (
            "transformers has no decoder for Chameleon's codes; load the model with tokenizer='vqgan.ckpt', the file "
            "of Meta's release (or write both into one folder: mmspec convert MODEL --tokenizer vqgan.ckpt -o FOLDER)"
            if self._vqvae is None
            else None
        )

    def job(self, request: ImageRequest) -> DecodingJob:
        refuse_options(self._model, request, "negative_prompt")
        refuse_empty(request.prompts)
        if self._lumina:
            pixels = LUMINA_GRID * self._factor
            height, width = size_of(request, 2 * self._factor) or (pixels, pixels)
            head = f"Generate an image of {width}x{height} according to the following prompt:\n"
            height, width = height // self._factor, width // self._factor
            picture = ImageConstraint.lumina(self._model, height, width, self._ids)
            place = 2 + torch.arange(height * (width + 1)).view(height, width + 1)[:, :width].flatten()
        else:
            refuse_options(self._model, request, "height", "width")
            head, height, width = "", self._side, self._side
            picture = ImageConstraint.anole(self._model, self._side, self._ids)
            place = torch.arange(self._side**2)
        # The tokenizer, not the processor, whose own end of the turn depends on how it is called.
        tokenizer = self._processor.tokenizer
        texts = [head + prompt for prompt in request.prompts]
        read = tokenizer(texts, padding=True, padding_side="left", return_tensors="pt")
        behind = torch.tensor([[self._ids.stop, self._ids.begin]]).expand(len(texts), -1)
        ids = torch.cat([read["input_ids"], behind], dim=1)
        mask = torch.cat([read["attention_mask"], torch.ones_like(behind)], dim=1)
        arguments = {"input_ids": ids, "attention_mask": mask, "prefix_allowed_tokens_fn": picture}
        if request.guided and not self._lumina:
            start = [tokenizer.bos_token_id, self._ids.begin]
            arguments["negative_prompt_ids"] = torch.tensor([start]).expand(len(texts), -1)
        return DecodingJob(arguments, picture.length, ids.shape[1] + place, (height, width))

    def codes(self, tokens: Tensor) -> Tensor:
        code_of = self._model.model.vocabulary_mapping.bpe2img
        table = torch.zeros(max(code_of) + 1, dtype=torch.int64)
        table[list(code_of)] = torch.tensor(list(code_of.values()))
        return table.to(tokens.device)[tokens]

    def pixels(self, codes: Tensor, grid: tuple[int, int]) -> NDArray[np.uint8]:
        floats = decode_tokens(self._vqvae, codes.to(self._vqvae.device), grid).float()
        pixels = ((floats.clamp(-1, 1) + 1) * 127.5).byte()
        return pixels.permute(0, 2, 3, 1).cpu().numpy()
