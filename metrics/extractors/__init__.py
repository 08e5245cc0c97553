"""Extractors: what turns pictures into the features that metrics read."""
