"""Benchmarks and cost models: speed, comparison with gsplat, kernel cost, multi-GPU scaling."""
