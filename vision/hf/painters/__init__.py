"""What lies between prompts and pictures for each class of transformers, on both sides of its `generate`."""
