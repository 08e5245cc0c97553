"""The LlamaGen transformers as models of diffusers."""

from __future__ import annotations

from diffusers import ModelMixin
from diffusers.loaders import PeftAdapterMixin

from mmspec.vision.diffusers_config import DiffusersConfig
from mmspec.vision.llamagen.blocks import BlockTransformer
from mmspec.vision.llamagen.transformer import LlamaGenTransformer


class LlamaGenGPT(ModelMixin, DiffusersConfig, PeftAdapterMixin, LlamaGenTransformer):
    """A `LlamaGenTransformer` that is saved and loaded as a component of a diffusers pipeline.

    With the package peft it takes LoRA adapters by diffusers' methods: `load_lora_adapter`, `add_adapter`,
    `set_adapters`, `fuse_lora` and others.
    """

    _repeated_blocks = ["Block"]
    _no_split_modules = ["Block"]
    __init__ = LlamaGenTransformer.__init__


class LlamaGenBlockGPT(ModelMixin, DiffusersConfig, PeftAdapterMixin, BlockTransformer):
    """A `BlockTransformer` that is saved and loaded as a component of a diffusers pipeline."""

    _repeated_blocks = ["Block"]
    _no_split_modules = ["Block"]
    __init__ = BlockTransformer.__init__
