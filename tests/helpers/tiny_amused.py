"""A tiny aMUSEd with random weights, of the classes of diffusers and transformers."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from diffusers import AmusedScheduler, UVit2DModel, VQModel
from transformers import CLIPTextConfig, CLIPTextModelWithProjection, CLIPTokenizer

from mmspec.vision.amused import AmusedPipeline


def tiny_amused(seed: int = 0) -> AmusedPipeline:
    """Images of 8x8 tokens from a codebook of 32; the mask token is 33."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transformer = UVit2DModel(
            hidden_size=16, cond_embed_dim=16, micro_cond_encode_dim=2, micro_cond_embed_dim=10, encoder_hidden_size=16,
            vocab_size=34, codebook_size=32, in_channels=16, block_out_channels=16, num_res_blocks=1,
            block_num_heads=2, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, sample_size=8,
        )  # fmt: skip
        vqvae = VQModel(
            block_out_channels=[8, 8], norm_num_groups=8, layers_per_block=1, latent_channels=8, num_vq_embeddings=32,
            down_block_types=["DownEncoderBlock2D"] * 2, up_block_types=["UpDecoderBlock2D"] * 2,
            lookup_from_codebook=True,
        )  # fmt: skip
        text_encoder = CLIPTextModelWithProjection(
            CLIPTextConfig(
                vocab_size=100, hidden_size=16, intermediate_size=16, projection_dim=16, num_hidden_layers=2,
                num_attention_heads=2, max_position_embeddings=16, bos_token_id=0, eos_token_id=1, pad_token_id=1,
            )
        )  # fmt: skip
        for module in (transformer, vqvae, text_encoder):
            for parameter in module.parameters():
                if parameter.ndim > 1:
                    torch.nn.init.normal_(parameter, std=0.3)
    pipe = AmusedPipeline(vqvae.eval(), tokenizer(), text_encoder.eval(), transformer.eval(), AmusedScheduler(33))
    pipe.set_progress_bar_config(disable=True)
    return pipe


def tokenizer() -> CLIPTokenizer:
    """CLIP's tokenizer with letters as its vocabulary."""
    letters = [chr(ord("a") + i) for i in range(26)]
    vocabulary = ["<|startoftext|>", "<|endoftext|>", *letters, *(letter + "</w>" for letter in letters)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocabulary)}))
        (folder / "merges.txt").write_text("#version: 0.2\n")
        return CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=16)
