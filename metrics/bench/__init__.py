"""Benchmarks: recipes side by side, latency of speech, single target calls, and the kernels."""
