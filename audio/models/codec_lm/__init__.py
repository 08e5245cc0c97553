"""CosyVoice and Chatterbox: text models with an embedding and a head for codec tokens."""
