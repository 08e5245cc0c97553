"""Engines: a batch that requests join and leave while it is decoded."""
