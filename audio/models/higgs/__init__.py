"""Higgs Audio v2."""
