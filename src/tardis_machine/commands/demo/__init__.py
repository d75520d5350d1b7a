"""The demo: a sample market of five exchanges -> the server -> a bus -> Spark -> gold, with counts at every stage.

Invariant: it walks through the same doors as a user does, counts at each of them, and fails where the counts differ.
"""
