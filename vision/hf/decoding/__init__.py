"""Generate adapters of transformers image classes: how `mmspec.generate` decodes each of them."""
