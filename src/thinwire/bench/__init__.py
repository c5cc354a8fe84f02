"""Benchmarks: every one prints how correct a thing is beside how fast it is."""
