"""Draft heads: small networks on the target's hidden states, and their checkpoints."""
