"""The embedded voice."""
