"""Drafts from a datastore, or from earlier in the same row."""
