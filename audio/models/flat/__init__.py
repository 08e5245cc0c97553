"""Flat speech models: codec tokens in a language model's vocabulary."""
