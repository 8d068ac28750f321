"""What a training loop calls besides rasterization: image losses, Adam and Morton order."""
