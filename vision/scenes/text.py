"""The text encoder of the scenes model as a model of diffusers."""

from __future__ import annotations

from diffusers import ModelMixin

from mmspec.vision.diffusers_config import DiffusersConfig
from mmspec.vision.scenes.text_encoder import SceneEncoder


class ScenesTextEncoder(ModelMixin, DiffusersConfig, SceneEncoder):
    """A `SceneEncoder` that is saved and loaded as a component of a diffusers pipeline."""

    __init__ = SceneEncoder.__init__
