"""Target distributions, random numbers, and rejection sampling of draft tokens."""
