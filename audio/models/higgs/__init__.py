"""Higgs Audio."""
