"""Token Recycling: an n-gram table that is built online from the target's own distributions."""
