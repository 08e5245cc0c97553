"""diffusers' `GlmImagePipeline` with tiny random weights in its real classes."""

from __future__ import annotations

from typing import Any

import tiny_models
import tiny_processors
import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    GlmImagePipeline,
    GlmImageTransformer2DModel,
)
from transformers import (
    ByT5Tokenizer,
    GlmImageConfig,
    GlmImageForConditionalGeneration,
    GlmImageImageProcessor,
    T5Config,
    T5EncoderModel,
)

TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<boi><image></boi>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endfor %}"
)
PATCH = 16  # pixels of an image at half its size, of which a code is made


def first_stage(seed: int = 0, codes: int = 20) -> Any:
    """The model of the first stage; random weights would end the image early, so it has no end."""
    config: GlmImageConfig = tiny_models.glm(codes=codes).config
    config.vision_config.patch_size, config.vision_config.image_size = PATCH, 8 * PATCH
    model = tiny_models.scatter(GlmImageForConditionalGeneration(config), seed, 0.3)
    model.generation_config.eos_token_id = None
    return model


def processor() -> Any:
    """The processor: an image is as many ids as it has patches."""
    made = tiny_processors.glm()
    size = {"shortest_edge": PATCH**2, "longest_edge": (32 * PATCH) ** 2}
    made.image_processor = GlmImageImageProcessor(patch_size=PATCH, temporal_patch_size=1, merge_size=1, size=size)
    made.chat_template, made.tokenizer.padding_side = TEMPLATE, "left"
    return made


def pipeline(seed: int = 0, codes: int = 20) -> GlmImagePipeline:
    torch.manual_seed(seed)
    pipe = GlmImagePipeline(
        tokenizer=ByT5Tokenizer(),
        processor=processor(),
        text_encoder=T5EncoderModel(T5Config(vocab_size=384, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)),
        vision_language_encoder=first_stage(seed, codes),
        vae=AutoencoderKL(
            down_block_types=["DownEncoderBlock2D"] * 4,
            up_block_types=["UpDecoderBlock2D"] * 4,
            block_out_channels=[8] * 4,
            norm_num_groups=4,
            layers_per_block=1,
            latent_channels=4,
            latents_mean=[0.0] * 4,
            latents_std=[1.0] * 4,
            use_quant_conv=False,
            use_post_quant_conv=False,
        ),
        transformer=GlmImageTransformer2DModel(
            in_channels=4,
            out_channels=4,
            num_layers=1,
            attention_head_dim=8,
            num_attention_heads=2,
            text_embed_dim=16,
            time_embed_dim=8,
            condition_dim=4,
            prior_vq_quantizer_codebook_size=codes + 4,
        ),
        scheduler=FlowMatchEulerDiscreteScheduler(),
    )
    for part in (pipe.text_encoder, pipe.vae, pipe.transformer):
        part.eval()
    pipe.set_progress_bar_config(disable=True)
    return pipe
