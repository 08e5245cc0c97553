"""`mmspec eval`: what a recipe gains in speed and what it costs in quality, measured in one run."""
