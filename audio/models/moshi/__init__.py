"""Moshi: text tokens, each with a frame of Mimi codes from a depth decoder."""
