"""Cosmos-1 and Cosmos-Predict1, autoregressive: videos continued from frames, as one stream of tokens."""

from mmspec.vision.cosmos_ar.pipeline import CosmosPipeline, VideoOutput

__all__ = ["CosmosPipeline", "VideoOutput"]
