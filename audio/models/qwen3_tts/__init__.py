"""Qwen3-TTS: frames of a 12.5 Hz codec from a talker and a code predictor."""
