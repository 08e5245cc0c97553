"""Models that generate columns: one token per codebook at every step."""
