"""Pocket TTS and Gradium Phonon TTS."""
