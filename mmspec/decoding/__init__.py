"""The decoding loop: when the target is called, and on what."""
