"""The embedded voice `spoken`: a small text-to-speech model that ships with the package, and its training."""
