"""Models of transformers as targets, and the callable for `model.generate(custom_generate=...)`."""
