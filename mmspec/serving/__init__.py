"""An HTTP server with OpenAI's endpoints for images and speech; the extra `serve` installs what it needs."""
