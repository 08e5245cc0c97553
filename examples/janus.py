"""Janus-Pro, as on its model card, with the additional argument `custom_generate`."""

from __future__ import annotations

from typing import Any

import torch
from transformers.generation import GenerationMixin

import mmspec

MODEL = "deepseek-community/Janus-Pro-1B"


def main(model: Any = None, processor: Any = None) -> None:
    """Writes janus_0.png; `model` and `processor` replace the published ones."""
    if model is None:
        from transformers import JanusForConditionalGeneration, JanusProcessor

        processor = JanusProcessor.from_pretrained(MODEL)
        model = JanusForConditionalGeneration.from_pretrained(MODEL, dtype=torch.bfloat16, device_map="auto")

    messages = [{"role": "user", "content": [{"type": "text", "text": "A dog running under the rain."}]}]
    prompt = processor.apply_chat_template(messages, add_generation_prompt=True)
    inputs = processor(text=prompt, generation_mode="image", return_tensors="pt").to(model.device)
    inputs.pop("generation_mode", None)

    # Janus overrides `generate` with a loop for images; the overridden method accepts `custom_generate`.
    tokens = GenerationMixin.generate(
        model,
        **inputs,
        do_sample=True,
        guidance_scale=5.0,
        max_new_tokens=model.model.vision_model.config.num_image_tokens,
        custom_generate=mmspec.generate,
        recipe="scd",
        seed=0,
    )
    # Channels first: without torchvision, transformers' processor misinterprets channels in the last axis.
    pixels = model.decode_image_tokens(tokens).permute(0, 3, 1, 2)
    images = processor.postprocess(list(pixels.float()), return_tensors="PIL.Image.Image")
    for i, image in enumerate(images["pixel_values"]):
        image.save(f"janus_{i}.png")


if __name__ == "__main__":
    main()
