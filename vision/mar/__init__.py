"""MAR: masked autoregressive image models whose latents are sampled by a diffusion head."""

from mmspec.vision.mar.checkpoint import load_mar
from mmspec.vision.mar.kl16 import load_kl16
from mmspec.vision.mar.masked import Shortcuts
from mmspec.vision.mar.pipeline import MARPipeline

__all__ = ["MARPipeline", "Shortcuts", "load_kl16", "load_mar"]
