"""Scripts that train and measure the embedded image model `scenes`."""
