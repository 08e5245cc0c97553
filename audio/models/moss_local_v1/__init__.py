"""The first MOSS-TTS-Local: frames from a Qwen3 and four of its layers along the depth, with a repetition penalty."""
