"""LFM2-Audio: frames of Mimi codes from an LFM2 and a small transformer along the depth."""
