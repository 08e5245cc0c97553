"""Pocket TTS."""
