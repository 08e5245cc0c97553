"""Benchmarks that papers print, as suites of `mmspec eval`: prompts, numbers of samples, metrics, and their sources."""
