"""Frames with a depth decoder."""
