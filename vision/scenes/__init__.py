"""The scenes model: 96x96 images of up to four objects on textured backgrounds, with one to two bits per token."""
