"""Differentiable PyTorch formulas that several modules use. `reference` does not use them, to be independent."""
