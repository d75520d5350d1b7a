"""The event buses, each with one client library: see `eventbus.contract` for what a bus is.

Invariant: a bus knows no other bus.
"""
