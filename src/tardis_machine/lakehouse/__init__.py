"""The lake: events from any bus to Delta tables, on Spark.

Invariant: every table can be rebuilt from the one before it (bronze from the bus, silver from bronze, gold from silver), so a job
that is killed at any point and started again ends with the same rows.
"""
