"""Training of drafters on what their target itself says."""
