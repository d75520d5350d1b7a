"""What Spark's users read by a format's name: history with a column for each field, planned by symbol and day, and what a bus holds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tardis_machine import replay_normalized
from tardis_machine.messages import Message
from tardis_machine.pipeline.columns import kinds_of, to_batch
from tardis_machine.sample.history_api import SampleHistoryApi
from tardis_machine.sample.market import SampleMarket
from tardis_machine.sample.recording import Recording

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(600)

# Over midnight: two partitions for each symbol.
ASKED = {"exchange": "bitmex", "from": "2020-01-31T23:59:30Z", "to": "2020-02-01T00:00:30Z"}
SYMBOLS = ("XBTUSD", "ETHUSD")
DAYS = ("2020-01-31T23:59:30Z", "2020-02-01T00:00:00Z", "2020-02-01T00:00:30Z")
TYPES = ("trade", "derivative_ticker", "book_snapshot_2_1s", "quote_1s")


@pytest.fixture(scope="module")
def api() -> Iterator[SampleHistoryApi]:
    with SampleHistoryApi(Recording(SampleMarket(1, 0.05), disconnects_per_day=0)).serve_in_thread() as api:
        yield api


@pytest.fixture
def formats(spark: SparkSession) -> SparkSession:
    """A session in which the formats are registered."""
    import tardis_machine.spark

    tardis_machine.spark.register(spark)
    return spark


def read(spark: SparkSession, api: SampleHistoryApi, cache: Path, **options: Any) -> DataFrame:
    given = {**ASKED, "symbols": ",".join(SYMBOLS), "dataTypes": ",".join(TYPES), "apiUrl": api.url, "cacheDir": str(cache)}
    return spark.read.format("tardis").options(**{**given, **options}).load()


def replayed(api: SampleHistoryApi, cache: Path) -> list[Message]:
    """What a replay of each symbol and day brings."""

    async def replay() -> list[Message]:
        found: list[Message] = []
        for start, end in pairwise(DAYS):
            for symbol in SYMBOLS:
                request = {"exchange": "bitmex", "from_": start, "to": end, "symbols": [symbol], "data_types": TYPES}
                async for batch in replay_normalized(**request, api_url=api.url, cache_dir=cache):
                    found += batch
        return found

    return asyncio.run(replay())


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return rows


def test_history_comes_as_typed_rows_by_symbol_and_day(formats: SparkSession, api: SampleHistoryApi, tmp_path: Path) -> None:
    frame = read(formats, api, tmp_path)
    expected = to_batch(replayed(api, tmp_path), kinds_of(TYPES), exact=True)
    assert frame.rdd.getNumPartitions() == 4
    assert frame.columns == expected.schema.names
    assert rows_of(frame) == expected.to_pylist()
    assert {row["type"] for row in rows_of(frame.select("type").distinct())} == {*kinds_of(TYPES)}


def test_numbers_may_be_doubles_and_columns_may_be_few(formats: SparkSession, api: SampleHistoryApi, tmp_path: Path) -> None:
    asked = formats.read.format("tardis").schema("price DOUBLE, local_ts TIMESTAMP")
    given = {"symbols": "XBTUSD", "dataTypes": "trade", "numbers": "double", "apiUrl": api.url, "cacheDir": str(tmp_path)}
    table = asked.options(**ASKED, **given).load().toArrow()
    trades = to_batch(replayed(api, tmp_path), ["trade"])
    mine = trades.filter(pa.compute.equal(trades.column("symbol"), "XBTUSD"))
    assert table.to_pylist() == mine.select(["price", "local_ts"]).to_pylist()
    assert len(table) > 10


def test_what_a_query_filters_is_not_fetched(formats: SparkSession, api: SampleHistoryApi, tmp_path: Path) -> None:
    frame = read(formats, api, tmp_path)
    one = frame.where("symbol = 'ETHUSD' AND type = 'trade'")
    assert one.rdd.getNumPartitions() == 2
    found = rows_of(one)
    expected = [row for row in rows_of(frame) if (row["symbol"], row["type"]) == ("ETHUSD", "trade")]
    assert found == expected != []
    assert rows_of(frame.where("exchange = 'deribit'")) == []
    # In other letters than the exchange writes it, a symbol is looked for among all rows.
    lower = read(formats, api, tmp_path, symbols="xbtusd,ethusd", dataTypes="trade").where("symbol IN ('ETHUSD', 'none')")
    assert lower.rdd.getNumPartitions() == 4
    assert rows_of(lower.select("price", "local_ts")) == [{name: row[name] for name in ("price", "local_ts")} for row in expected]


def test_a_session_that_nobody_told_finds_the_format(spark: SparkSession, api: SampleHistoryApi, tmp_path: Path) -> None:
    other = spark.newSession()
    assert other.conf.get("spark.sql.python.filterPushdown.enabled") == "false"
    assert read(other, api, tmp_path, dataTypes="trade").where("symbol = 'ETHUSD'").count() > 10


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dataTypes": "trades"}, "OptionsError: dataTypes: "),
        ({"from": "yesterday"}, "OptionsError: from: expected an ISO 8601 date"),
        ({"exchange": "bitmax"}, "OptionsError: exchange: "),
        ({"numbers": "float"}, "numbers: expected decimal or double"),
        ({"datatype": "trade"}, "datatype is not a setting: did you mean dataTypes?"),
    ],
)
def test_what_is_wrong_is_said(
    options: dict[str, str], sentence: str, formats: SparkSession, api: SampleHistoryApi, tmp_path: Path
) -> None:
    with pytest.raises(Exception) as caught:
        read(formats, api, tmp_path, **options)
    assert sentence in str(caught.value)


def test_what_upstream_refuses_is_said_with_its_partition(formats: SparkSession, tmp_path: Path) -> None:
    with (
        SampleHistoryApi(Recording(SampleMarket(1, 0.05)), api_key="good").serve_in_thread() as api,
        pytest.raises(Exception) as caught,
    ):
        read(formats, api, tmp_path, symbols="XBTUSD", apiKey="a-bad-key").count()
    assert "LakeError: bitmex XBTUSD from 2020-01-31T23:59:30.000000Z: " in str(caught.value)
    assert "a-bad-key" not in str(caught.value)
