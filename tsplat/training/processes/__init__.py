"""Training with several processes: launching ranks, the process group and heartbeats."""
