"""Models with one token per codebook in every column."""
