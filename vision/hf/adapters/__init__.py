"""Image adapters of transformers classes: prompts to arguments of `generate`, and tokens to pixels."""
