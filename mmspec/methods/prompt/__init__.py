"""Parallel Prompt Decoding: learned prompt tokens predict the next tree in the target's own call."""
