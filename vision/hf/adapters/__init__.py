"""What lies between prompts and images for each class of transformers, on both sides of its `generate`."""
