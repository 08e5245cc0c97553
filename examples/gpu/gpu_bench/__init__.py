"""What a CUDA device should do and what it does: counted calls, predictions, and one benchmark of everything."""
