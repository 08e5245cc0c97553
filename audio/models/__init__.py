"""One package per audio model: `decoding` wraps it for the loop, `speech` or `music` for the pipeline."""
