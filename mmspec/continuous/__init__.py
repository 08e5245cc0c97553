"""Tokens that are vectors, drawn by a diffusion or flow head: their law, their acceptance rules, their drafters."""
