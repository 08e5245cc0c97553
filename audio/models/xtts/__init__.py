"""XTTS-v2: the GPT-2 of the package coqui-tts."""
