"""MOSS-TTS-Local v1.5: frames from a Qwen3 and a small transformer along the depth."""
