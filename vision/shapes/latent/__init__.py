"""The shapes model with latents as tokens: the same scenes, whose latents a flow head samples."""
