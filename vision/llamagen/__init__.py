"""LlamaGen: class- and text-conditional autoregressive image models over a 2-D grid of tokens."""

from mmspec.vision.llamagen.checkpoint import load_gpt as load_gpt
from mmspec.vision.llamagen.tokenizer import load_tokenizer as load_tokenizer
