"""For who has a Spark session of their own: market data as formats of `spark.read` and `spark.readStream`, and joins by time.

    import tardis_machine.spark
    trades = spark.read.format("tardis").options(exchange="bitmex", symbols="XBTUSD", dataTypes="trade",
                                                 **{"from": "2020-02-01", "to": "2020-02-02"}).load()

Invariant: nothing here starts Spark, or changes a session but by `register`.
"""

from __future__ import annotations

from ..errors import MissingExtraError
from .asof import asof_join
from .markouts import markouts

try:
    from pyspark.sql import SparkSession
except ImportError:
    raise MissingExtraError("tardis_machine.spark", "spark") from None

__all__ = ["asof_join", "markouts", "register"]


def register(spark: SparkSession | None = None) -> None:
    """Makes the formats known to a session, by default to the one that is active.

    The session that is active when this package is imported is registered then. Another one finds the formats by itself
    where the package is installed (`pyspark_tardis`, `pyspark_tardis_events`).
    """
    from .events import EventsDataSource
    from .history import HistoryDataSource

    spark = spark or SparkSession.getActiveSession()
    if spark is None:
        raise RuntimeError("there is no active Spark session; start one, or name it: register(spark)")
    spark.dataSource.register(EventsDataSource)
    spark.dataSource.register(HistoryDataSource)


if SparkSession.getActiveSession() is not None:
    register()
