"""Image generators of transformers: adapters and pipelines."""
