"""Image generators of transformers: how they are decoded, their adapters and their pipeline."""
