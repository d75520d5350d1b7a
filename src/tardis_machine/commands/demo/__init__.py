"""The demo: a sample market of five exchanges -> the server -> a bus -> Spark -> gold, with counts at every stage.

Invariant: it uses what a user uses, counts events at every stage, and fails when the counts differ.
"""
