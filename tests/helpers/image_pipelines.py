"""Every kind of image and video pipeline, tiny or embedded, with a call of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tiny_amused
import tiny_flat_images
import tiny_llamagen
import tiny_models
import tiny_processors
import tiny_var
import tiny_xomni
import torch
from diffusers import VQModel
from golden import GOLDEN, expected
from tiny_emu35 import fill, sizes, tokenizer
from tiny_mar import tiny as tiny_mar
from transformers import Qwen3Config, Qwen3ForCausalLM

import mmspec
from mmspec.vision.hf.interleaved import InterleavedGenerator
from mmspec.vision.hf.pipeline import TransformersPipeline
from mmspec.vision.hf.xomni import XOmniConfig, XOmniForCausalLM
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline
from mmspec.vision.mar import MARPipeline


@dataclass(frozen=True)
class Case:
    """A pipeline.

    Attributes:
        make: Makes it.
        call: A call of it.
        pixels: Whether it has the decoder of its codes.
    """

    make: Callable[[], Any]
    call: Mapping[str, Any]
    pixels: bool = False


def flat(layout: str, **config: Any) -> Any:
    model = tiny_flat_images.model(layout, **config)
    return mmspec.load(model, processor=tiny_flat_images.tokenizer(layout), config={"layout": layout})


def chameleon(layout: str) -> Any:
    processor = tiny_processors.chameleon()
    return mmspec.load(tiny_models.chameleon(), processor=processor, config={"layout": layout})


def xomni() -> Any:
    model = XOmniForCausalLM(XOmniConfig(**tiny_xomni.sizes()))
    tiny_xomni.fill(model.named_parameters())
    return TransformersPipeline(model.eval(), tiny_xomni.tokenizer())


def llamagen() -> Any:
    vqvae = VQModel(
        block_out_channels=(32, 32), down_block_types=("DownEncoderBlock2D",) * 2, norm_num_groups=32,
        up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=8, num_vq_embeddings=tiny_llamagen.V, vq_embed_dim=8,
        lookup_from_codebook=True,
    )  # fmt: skip
    return LlamaGenPipeline(tiny_llamagen.tiny(model_type="c2i", num_classes=7, cls_token_num=1), vqvae.eval())


def interleaved() -> Any:
    model = Qwen3ForCausalLM(Qwen3Config(**sizes()))
    fill(model.named_parameters(), 0)
    return InterleavedGenerator(TransformersPipeline(model.eval(), tokenizer(), layout="emu3.5"))


def cosmos(kind: str) -> Any:
    return mmspec.load(GOLDEN / f"cosmos_{kind}", config={"video_latent_shape": [3, 2, 4], "apply_yarn": True})


def frames(kind: str) -> dict[str, Any]:
    e = expected(GOLDEN / f"cosmos_{kind}")
    return {"tokens": e["codes"][:1]} | ({"prompt_embeds": e["context"][:1]} if kind == "text" else {})


SMALL = {"prompt": "a dog", "height": 32, "width": 32}
CASES = {
    "janus": Case(
        lambda: mmspec.load(tiny_models.janus(), processor=tiny_processors.janus()), {"prompt": "a dog"}, True
    ),
    "emu3": Case(lambda: mmspec.load(tiny_models.emu3(), processor=tiny_processors.emu3()), SMALL, True),
    "anole": Case(lambda: chameleon("anole"), {"prompt": "a dog"}),
    "lumina": Case(lambda: chameleon("lumina"), {"prompt": "a dog", "height": 16, "width": 16}),
    "glm": Case(lambda: mmspec.load(tiny_models.glm(), processor=tiny_processors.glm()), SMALL),
    "imagegpt": Case(lambda: mmspec.load(tiny_models.imagegpt(), processor=tiny_processors.imagegpt()), {}, True),
    "simplear": Case(lambda: flat("simplear"), SMALL),
    "liquid": Case(lambda: flat("liquid", max_position_embeddings=1200), {"prompt": "a dog"}),
    "flat-emu3": Case(lambda: flat("emu3"), SMALL),
    "emu3.5": Case(lambda: flat("emu3.5"), SMALL),
    "x-omni": Case(xomni, SMALL),
    "interleaved": Case(interleaved, SMALL | {"max_new_tokens": 20}),
    "llamagen": Case(llamagen, {"class_labels": 1}, True),
    "llamagen-text": Case(
        lambda: LlamaGenPipeline(tiny_llamagen.tiny()),
        {"prompt_embeds": torch.zeros(1, tiny_llamagen.T, tiny_llamagen.C)},
    ),
    "shapes": Case(lambda: mmspec.load("shapes"), {"prompt": "a red circle"}, True),
    "shapes-latent": Case(lambda: mmspec.load("shapes-latent"), {"prompt": "a red circle"}, True),
    "scenes": Case(lambda: mmspec.load("scenes"), {"prompt": "a red 7 at the top left"}, True),
    "mar": Case(lambda: MARPipeline(tiny_mar()), {"class_labels": 1}),
    "mar-pair": Case(lambda: MARPipeline(tiny_mar(), None, tiny_mar(lean=0.02)), {"class_labels": 1}),
    "var": Case(tiny_var.tiny_var_pipeline, {"class_labels": 1}, True),
    "amused": Case(tiny_amused.tiny_amused, {"prompt": "a dog", "steps": 3}, True),
    "cosmos": Case(lambda: cosmos("base"), frames("base")),
    "cosmos-text": Case(lambda: cosmos("text"), frames("text")),
}
