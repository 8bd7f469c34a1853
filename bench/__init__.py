"""Benchmarks of ours beside a peer's: `python -m bench NAME`."""
