"""Grid heads: the row above and the left neighbor draft the next row of an image."""
