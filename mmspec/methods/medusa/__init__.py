"""Medusa heads on the target's last feature, each one position further ahead."""
