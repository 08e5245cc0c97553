"""Image generators of transformers: adapters, and the callable for `model.generate(custom_generate=...)`."""
