"""Metrics of sound: spectra, words and voices. Waveforms are float [T], one channel, on the same scale."""
