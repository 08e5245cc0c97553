"""VibeVoice."""
