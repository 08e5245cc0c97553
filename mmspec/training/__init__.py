"""Training of drafters by distillation: they learn from sequences that the target itself generates."""
