"""Trees that are sampled node by node, by expected value (DySpec)."""
