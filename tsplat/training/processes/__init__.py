"""Training with several processes: launching ranks, the process group, heartbeats and sharded files."""
