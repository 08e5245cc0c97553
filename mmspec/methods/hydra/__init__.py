"""Hydra heads: Medusa heads that also read the drafts before them."""
