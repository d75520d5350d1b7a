"""A notebook, cell by cell: a day of trades and quotes in any Spark session, without a lake.

python examples/spark_notebook.py [URL of a machine or of the history API]     TM_API_KEY: a key or a machine's token
"""

# %% A session, as notebooks have one already
import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark would take the python3 of PATH
settings = {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()

# %% From here on Spark knows the formats
import tardis_machine.spark  # noqa: E402, F401 - it registers them

asked = {"exchange": "bitmex", "symbols": "XBTUSD,ETHUSD", "from": "2020-02-01T00:00:00Z", "to": "2020-02-01T00:02:00Z"}
if sys.argv[1:]:
    asked["apiUrl"] = sys.argv[1]
market = spark.read.format("tardis").options(**asked, dataTypes="trade,quote_1s", numbers="double").load()
market.printSchema()

# %% Trades of XBTUSD by side
trades = market.where("type = 'trade' AND symbol = 'XBTUSD'")
trades.groupBy("side").agg(F.count("*").alias("trades"), F.sum("amount").alias("amount")).orderBy("side").show()

# %% The spread, minute by minute
quotes = market.where("type = 'quote'").withColumn("minute", F.date_trunc("minute", "local_ts"))
quotes.groupBy("symbol", "minute").agg(F.avg(F.expr("ask_price - bid_price")).alias("spread")).orderBy("symbol", "minute").show()

# %% What pandas gets
print(trades.select("local_ts", "price", "amount", "side").limit(3).toPandas())
