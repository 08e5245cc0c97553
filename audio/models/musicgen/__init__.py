"""MusicGen and MusicGen-melody."""
