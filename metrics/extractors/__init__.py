"""Extractors: what turns images into the features that metrics read."""
