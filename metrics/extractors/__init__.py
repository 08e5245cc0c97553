"""Extractors: networks that turn images or recordings into the features that metrics read."""
