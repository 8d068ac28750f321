"""The names of ``gsplat.cuda``: stages of the pipeline, and their parts in plain PyTorch."""
