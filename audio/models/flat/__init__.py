"""Flat speech language models: text and codec tokens in one vocabulary."""
