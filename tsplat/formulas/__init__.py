"""Formulas in PyTorch that several modules use, differentiated by autograd. `reference` has its own."""
