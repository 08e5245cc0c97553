"""Bark: text to EnCodec codes in three stages."""
