"""Kangaroo: an early exit of the target, and a trained adapter after it."""
