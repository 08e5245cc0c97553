"""Models of transformers that speak, after `mmspec.audio.pipeline.SpeechAdapter`."""
