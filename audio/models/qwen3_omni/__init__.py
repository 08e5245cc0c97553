"""Qwen3-Omni: a talker that generates speech frame by frame."""
