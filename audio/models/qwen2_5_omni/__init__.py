"""Qwen2.5-Omni: a talker that generates speech code by code."""
