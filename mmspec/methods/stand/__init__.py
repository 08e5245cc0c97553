"""STAND: samples of the target's own distributions after the same neighbors."""
