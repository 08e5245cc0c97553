"""Emu3, as in its documentation, with the additional argument `custom_generate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import mmspec

MODEL = "BAAI/Emu3-Gen-hf"


def main(model: Any = None, processor: Any = None) -> None:
    """Writes emu3_0.png; `model` and `processor` replace the published ones."""
    if model is None:
        from transformers import Emu3ForConditionalGeneration, Emu3Processor

        processor = Emu3Processor.from_pretrained(MODEL)
        model = Emu3ForConditionalGeneration.from_pretrained(MODEL, dtype=torch.bfloat16, device_map="auto")

    inputs = processor(
        text=["a portrait of young girl. masterpiece, film grained, best quality."],
        padding=True,
        return_tensors="pt",
        return_for_image_generation=True,
    ).to(model.device)
    negative = processor(text=["lowres, bad anatomy, blurry"], padding=True, return_tensors="pt").to(model.device)
    height, width = (int(side) for side in inputs.pop("image_sizes")[0])
    ids = processor.tokenizer
    eol = (ids.convert_tokens_to_ids("<|extra_200|>"),)
    eof, eoi, eos, pad = (ids.eof_token_id,), (ids.eoi_token_id,), (ids.eos_token_id,), (ids.pad_token_id,)
    codes = model.vocabulary_mapping.image_tokens

    def allowed(row: int, sequence: Tensor) -> Sequence[int]:
        begin = int((sequence == ids.image_wrapper_token_id).nonzero()[0, 0])
        offset = len(sequence) - begin
        if offset % (width + 1) == 0:
            return eol
        after = offset - (width + 1) * height
        return codes if after < 1 else {1: eof, 2: eoi, 3: eos}.get(after, pad)

    out = model.generate(
        **inputs,
        max_new_tokens=height * (width + 1) + 3,
        prefix_allowed_tokens_fn=allowed,
        do_sample=True,
        guidance_scale=3.0,
        negative_prompt_ids=negative.input_ids,
        negative_prompt_attention_mask=negative.attention_mask,
        custom_generate=mmspec.generate,
        recipe="scd",
        seed=0,
    )
    tokens = out[:, inputs["input_ids"].shape[1] :]
    pixels = model.decode_image_tokens(image_tokens=tokens, height=height, width=width)
    images = processor.postprocess(list(pixels.float()), return_tensors="PIL.Image.Image")
    for i, image in enumerate(images["pixel_values"]):
        image.save(f"emu3_{i}.png")


if __name__ == "__main__":
    main()
