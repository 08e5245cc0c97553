"""Moshi."""
