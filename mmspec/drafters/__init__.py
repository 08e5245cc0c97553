"""Drafters: they propose tokens that the target verifies."""
