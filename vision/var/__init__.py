"""VAR: next-scale image models, which generate token maps of growing size, each in one pass."""

from mmspec.vision.var.checkpoint import load_tokenizer, load_var
from mmspec.vision.var.pipeline import VARPipeline

__all__ = ["VARPipeline", "load_tokenizer", "load_var"]
