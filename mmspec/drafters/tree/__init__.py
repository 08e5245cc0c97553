"""Drafters of token trees."""
