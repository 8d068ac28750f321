"""Runs: training, resuming, evaluating and reporting, with checkpoints, records and a live view."""
