"""Helpers of other packages: files and output, signals, progress, optional dependencies."""
