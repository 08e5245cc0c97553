"""Metrics of audio, one per file: the formula, and the `Metric` objects that evaluations find by name.

Waveforms are float [T], one channel, on the same scale.
"""
