"""Drafters of trees."""
