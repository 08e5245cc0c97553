"""Nodes of ComfyUI for mmspec: copy this folder into ComfyUI's `custom_nodes`, and mmspec into its environment."""

from .nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"]
