"""MOSS-TTS with delays: a Qwen3 that generates columns of a token of text and codes."""
