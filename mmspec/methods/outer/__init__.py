"""Drafts that are coupled to what the target's first and last layers make of a corrected window."""
