"""Models whose frames are a backbone's first token and a depth decoder's codes: CSM, Qwen3-TTS, Qwen3-Omni, Moshi."""
