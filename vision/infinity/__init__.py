"""Infinity: next-scale image models whose tokens are bits."""

from mmspec.vision.infinity.checkpoint import load_infinity, read_text_features
from mmspec.vision.infinity.decoding import decode_bits
from mmspec.vision.infinity.transformer import SQUARE, InfinityTransformer

__all__ = ["SQUARE", "InfinityTransformer", "decode_bits", "load_infinity", "read_text_features"]
