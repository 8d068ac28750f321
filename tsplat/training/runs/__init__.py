"""Runs: training, resuming, evaluating and reporting, with checkpoints, records and what shows a run meanwhile."""
