"""Codec language models with their own text side: CosyVoice, Chatterbox."""
