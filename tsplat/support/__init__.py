"""Shared by scene, viewing and training: atomic files, optional dependencies and progress displays."""
