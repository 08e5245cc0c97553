"""Fish Audio S2 Pro: frames from a slow and a fast transformer."""
