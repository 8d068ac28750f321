"""How functions run under PyTorch: which kernels, autograd, ``torch.compile``, traces, memory and processes."""
