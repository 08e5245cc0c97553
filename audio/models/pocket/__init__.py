"""Pocket TTS and Gradium Phonon TTS: latents from a flow head."""
