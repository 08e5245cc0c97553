"""LlamaGen: class- and text-conditional autoregressive image models over a 2-D grid of tokens."""
