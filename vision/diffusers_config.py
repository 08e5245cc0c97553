"""The configuration of components that are models of diffusers."""

from __future__ import annotations

from diffusers import ConfigMixin

from mmspec.vision.component import Component


class DiffusersConfig(Component, ConfigMixin):
    """A component whose configuration diffusers saves and loads.

    Subclasses derive from `ModelMixin` first, which diffusers looks for in the module of the class, and name the
    constructor of the component.
    """

    config_name = "config.json"
    config = ConfigMixin.config
    register_to_config = ConfigMixin.register_to_config
