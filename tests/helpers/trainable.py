"""A tiny pipeline that drafters can be trained for, and the settings of such a training."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from mmspec.training.settings import TrainingSettings
from mmspec.vision.llamagen.gpt import LlamaGenGPT
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline

V, SIDE, SLOTS, C = 12, 3, 4, 5
PROMPTS = ("abc", "bcd", "cab", "dd")


class Letters(ModelMixin, ConfigMixin):
    """A text encoder that encodes the letter of each slot."""

    @register_to_config
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("eye", torch.eye(C))

    def encode(self, prompts: list[str]) -> tuple[Tensor, Tensor]:
        ids = torch.tensor([[ord(c) % C for c in p.rjust(SLOTS)[:SLOTS]] for p in prompts])
        return self.eye[ids], torch.ones(ids.shape, dtype=torch.long)


def tiny_pipe(layers: int = 2) -> LlamaGenPipeline:
    with torch.random.fork_rng():
        torch.manual_seed(0)  # for buffers, such as the embedding of the empty prompt
        gpt = LlamaGenGPT(
            V, 32, layers, 2, 64, model_type="t2i", cls_token_num=SLOTS, caption_dim=C, grid_size=SIDE
        ).eval()
    generator = torch.Generator().manual_seed(0)
    for p in gpt.parameters():
        if p.ndim > 1:
            p.data = torch.randn(p.shape, generator=generator) * 0.3
    pipe = LlamaGenPipeline(gpt, None, Letters(), guidance_scale=1.5)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def settings(kind: str, **changes: Any) -> TrainingSettings:
    values: dict[str, Any] = {
        "loss": "kl", "prompts": PROMPTS[:3], "held_out": PROMPTS[3:], "sequences": 18, "steps": 6,
    }  # fmt: skip
    values |= {"batch": 4, "lr": 3e-3, "depth": 2, "hidden": 48, "seed": 0, "layers": 1}
    return TrainingSettings(kind, **values | changes)
