"""Anole draws: transformers' Chameleon, whose own generate never gives a picture token."""

from __future__ import annotations

from typing import Any

import torch

import mmspec
from mmspec.vision.hf.chameleon import Ids, Picture

MODEL = "leloy/Anole-7b-v0.1-hf"
RELEASED = Ids()


def main(model: Any = None, processor: Any = None, ids: Ids = RELEASED, side: int = 32) -> None:
    """Writes anole.pt, the codes of the pictures' VQGAN, int64 [B, side * side]; transformers has no decoder for them.

    `model`, `processor`, `ids` and `side` stand in for the published ones.
    """
    if model is None:
        from transformers import ChameleonForConditionalGeneration, ChameleonProcessor

        processor = ChameleonProcessor.from_pretrained(MODEL)
        model = ChameleonForConditionalGeneration.from_pretrained(MODEL, dtype=torch.bfloat16, device_map="auto")

    inputs = processor(text="a red apple on a table", return_tensors="pt").to(model.device)
    begin = inputs["input_ids"].new_tensor([[ids.stop, ids.begin]])
    prompt = torch.cat([inputs["input_ids"], begin.expand(len(inputs["input_ids"]), -1)], dim=1)
    picture = Picture.anole(model, side, ids)
    out = model.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=picture.length,
        prefix_allowed_tokens_fn=picture,
        do_sample=True,
        top_k=2000,
        guidance_scale=3.0,
        negative_prompt_ids=prompt[:, [0, -1]],
        custom_generate=mmspec.generate,
        recipe="scd",
        seed=0,
    )
    code_of = model.model.vocabulary_mapping.bpe2img
    tokens = out[:, prompt.shape[1] : prompt.shape[1] + side**2]
    torch.save(tokens.cpu().apply_(code_of.__getitem__), "anole.pt")


if __name__ == "__main__":
    main()
