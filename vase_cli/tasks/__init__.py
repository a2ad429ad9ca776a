"""Benchmarks: a base and one file of facts each."""
