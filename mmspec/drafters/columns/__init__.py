"""Drafters of columns: one token per codebook in every position."""
