"""Where Spark finds the format `tardis-events` by itself, as it finds `tardis` in `pyspark_tardis`."""

from tardis_machine.spark.events import EventsDataSource as DefaultSource

__all__ = ["DefaultSource"]
