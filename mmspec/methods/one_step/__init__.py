"""Distilled Decoding: a one-step generator maps noise to a whole window, or a whole image."""
