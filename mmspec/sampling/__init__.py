"""Distributions, random numbers, and the rejection of drafts."""
