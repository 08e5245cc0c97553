"""Models of transformers that speak, behind `mmspec.audio.pipeline.Speaker`."""
