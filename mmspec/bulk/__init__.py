"""Bulk generation: many samples, on one machine or many, that survives being killed at any time."""
