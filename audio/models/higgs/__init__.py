"""Higgs Audio v2: delayed columns of codes from a Llama."""
