"""Bark."""
