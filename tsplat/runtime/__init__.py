"""Integration with PyTorch: backends, autograd, ``torch.compile``, traces, memory and process groups."""
