"""Speech models whose tokens are latents of a codec: Pocket TTS, Gradium Phonon TTS and VibeVoice of transformers."""
