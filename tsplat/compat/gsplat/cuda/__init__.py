"""Names of ``gsplat.cuda``: the stages of the pipeline, and some of their steps in plain PyTorch."""
