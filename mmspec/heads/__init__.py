"""Small networks that draft from a target's features, and the files they come in."""
