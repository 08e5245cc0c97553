"""Speculative decoding of continuous tokens: latents sampled by a diffusion or flow head."""
