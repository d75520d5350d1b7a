"""Where Spark finds the format `tardis` by itself: it looks for packages of such a name when a session first reads a Python format."""

from tardis_machine.spark.history import HistoryDataSource as DefaultSource

__all__ = ["DefaultSource"]
