"""The text encoder of the shapes model as a model of diffusers."""

from __future__ import annotations

from diffusers import ModelMixin

from mmspec.vision.diffusers_config import DiffusersConfig
from mmspec.vision.shapes.text_encoder import CaptionEncoder


class ShapesTextEncoder(ModelMixin, DiffusersConfig, CaptionEncoder):
    """A `CaptionEncoder` that is saved and loaded as a component of a diffusers pipeline."""

    __init__ = CaptionEncoder.__init__
