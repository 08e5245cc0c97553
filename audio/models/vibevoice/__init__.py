"""VibeVoice: latents from a diffusion head on a language model."""
