"""Exactness checks and enumerable toy models, for our tests and for those of plug-ins."""
