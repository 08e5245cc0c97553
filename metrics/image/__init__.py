"""Metrics of images, one per file: the formula, and the `Metric` objects that evaluations find by name.

Distances over features (`fd`, `kd`, `precision`, `recall`) apply to audio as well, with an extractor of audio.
"""
