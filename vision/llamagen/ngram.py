"""An n-gram table as a model of diffusers."""

from __future__ import annotations

from diffusers import ModelMixin

from mmspec.vision.diffusers_config import DiffusersConfig
from mmspec.vision.llamagen.components import NGramTokens


class NGramTokenTable(ModelMixin, DiffusersConfig, NGramTokens):
    """An `NGramTokens` that is saved and loaded as a component of a diffusers pipeline."""

    __init__ = NGramTokens.__init__
