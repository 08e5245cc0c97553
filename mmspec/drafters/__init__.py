"""Drafters: things that propose tokens cheaply."""
