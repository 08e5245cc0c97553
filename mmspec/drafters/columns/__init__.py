"""Drafters of columns, that is of one token per codebook at every position."""
