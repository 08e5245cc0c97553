"""Anole: images from transformers' Chameleon, whose own generate forbids image tokens."""

from __future__ import annotations

import argparse
from typing import Any

import torch

import mmspec
from mmspec.vision.hf.decoding.chameleon import ChameleonIds, ImageConstraint

MODEL = "leloy/Anole-7b-v0.1-hf"


def main(vqgan: str | None = None, model: Any = None, processor: Any = None, side: int = 32) -> None:
    """Writes anole.pt, the codes of the images, int64 [B, side * side], and with a VQGAN also anole_0.png.

    Args:
        vqgan: The path of tokenizer/vqgan.ckpt in Meta's release of Chameleon, which decodes the codes.
        model: Replaces the published model.
        processor: Replaces the published processor.
        side: Rows and columns of codes.
    """
    if model is None:
        from transformers import ChameleonForConditionalGeneration, ChameleonProcessor

        processor = ChameleonProcessor.from_pretrained(MODEL)
        model = ChameleonForConditionalGeneration.from_pretrained(MODEL, dtype=torch.bfloat16, device_map="auto")

    # The processor ends the turn; the begin-of-image token is added here.
    inputs = processor(text="a red apple on a table", return_tensors="pt").to(model.device)
    ids = ChameleonIds.of(model)
    begin = inputs["input_ids"].new_tensor([[ids.begin]])
    prompt = torch.cat([inputs["input_ids"], begin.expand(len(inputs["input_ids"]), -1)], dim=1)
    constraint = ImageConstraint.anole(model, side, ids)
    out = model.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=constraint.length,
        prefix_allowed_tokens_fn=constraint,
        do_sample=True,
        # As in Anole's own code, which has no top-k; the default of transformers is 50.
        temperature=0.7,
        top_k=0,
        top_p=0.9,
        guidance_scale=3.0,
        negative_prompt_ids=prompt[:, [0, -1]],
        custom_generate=mmspec.generate,
        recipe="scd",
        seed=0,
    )
    code_of = model.model.vocabulary_mapping.bpe2img
    tokens = out[:, prompt.shape[1] : prompt.shape[1] + side**2]
    codes = tokens.cpu().apply_(code_of.__getitem__)
    torch.save(codes, "anole.pt")
    if vqgan is not None:
        from diffusers.image_processor import VaeImageProcessor

        from mmspec.vision.hf.vqgan import load_vqgan
        from mmspec.vision.llamagen.codes import decode_tokens

        for i, image in enumerate(VaeImageProcessor().postprocess(decode_tokens(load_vqgan(vqgan), codes))):
            image.save(f"anole_{i}.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vqgan", help="tokenizer/vqgan.ckpt of Meta's release, for an image")
    main(parser.parse_args().vqgan)
