"""The names of ``gsplat.cuda``: stages of the pipeline, and parts of them in plain PyTorch."""
