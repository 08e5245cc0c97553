"""Scripts that train and measure the embedded voice."""
