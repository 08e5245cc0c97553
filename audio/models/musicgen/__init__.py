"""MusicGen and MusicGen-melody: delayed columns of EnCodec codes."""
