"""What a training loop calls besides rasterization: image losses and Adam."""
