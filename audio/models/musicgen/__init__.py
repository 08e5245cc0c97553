"""MusicGen."""
