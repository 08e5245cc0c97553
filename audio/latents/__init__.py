"""Parts shared by speech models whose tokens are latents: Pocket TTS, Gradium Phonon TTS and VibeVoice."""
