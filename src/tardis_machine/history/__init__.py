"""Recorded history: slices of it fetched, cached and read.

Invariant: imports nothing by itself, as worker processes read slices without the weight of an HTTP client.
"""
