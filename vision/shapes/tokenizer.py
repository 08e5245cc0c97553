"""The tokenizer of the shapes model as a model of diffusers."""

from __future__ import annotations

from diffusers import ModelMixin

from mmspec.vision.diffusers_config import DiffusersConfig
from mmspec.vision.shapes.fsq_tokenizer import FSQTokenizer


class ShapesTokenizer(ModelMixin, DiffusersConfig, FSQTokenizer):
    """An `FSQTokenizer` that is saved and loaded as a component of a diffusers pipeline."""

    # With it, diffusers would infer from the integer `book` that the tensors of a file need no conversion.
    _supports_param_buffer_assignment = False
    __init__ = FSQTokenizer.__init__
