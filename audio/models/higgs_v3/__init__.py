"""Higgs TTS 3 (Higgs Audio v3): delayed columns of codes from a Qwen3."""
