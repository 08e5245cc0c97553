"""`mmspec check -m`: the checks of a model with a user's own weights."""
