"""Benchmarks: what the project says of its speed, measured in one run against raw limits and other programs."""
