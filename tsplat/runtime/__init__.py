"""Runs functions under PyTorch: backends, autograd, ``torch.compile``, traces, memory and processes."""
