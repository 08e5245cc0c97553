"""The shapes model with latents for tokens: the same scenes, drawn by a flow head."""
