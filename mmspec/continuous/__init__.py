"""Tokens that are vectors, drawn by a diffusion or flow head: their distribution, their acceptance rules, their drafters."""
