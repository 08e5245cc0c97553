"""How each transformers image model is decoded."""
