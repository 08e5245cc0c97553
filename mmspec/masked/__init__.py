"""Decoding of masked models, which know all places at once and fill some of them in each step."""
