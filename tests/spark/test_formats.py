"""What Spark's users read by a format's name: history with a column for each field, planned by symbol and day, and what a bus holds."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from tardis_machine import replay_normalized
from tardis_machine.errors import LakeError
from tardis_machine.messages import BookChange, BookLevel, Message, to_timestamp
from tardis_machine.pipeline.columns import kinds_of, to_batch
from tardis_machine.sample.history_api import SampleHistoryApi
from tardis_machine.sample.market import SampleMarket
from tardis_machine.sample.recording import Recording
from tardis_machine.settings import from_format_options
from tardis_machine.spark.events import find_bus
from tardis_machine.spark.streaming import Journal
from tests.integration.scripted_exchange import scripted_exchange
from tests.integration.test_stream_server import trade as live_trade
from tests.spark.lake_under_test import START_US, FileBus, encode, trades

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

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


def test_a_frame_that_is_filtered_twice_has_the_rows_of_both(
    formats: SparkSession, api: SampleHistoryApi, tmp_path: Path
) -> None:
    frame = read(formats, api, tmp_path)
    parts = [frame.where(f"type = '{name}'").select("type", "local_ts") for name in ("trade", "quote")]
    both = rows_of(parts[0].unionByName(parts[1]))
    assert both == rows_of(parts[0]) + rows_of(parts[1])
    assert {row["type"] for row in both} == {"trade", "quote"}


def test_a_session_that_nobody_told_finds_the_format(spark: SparkSession, api: SampleHistoryApi, tmp_path: Path) -> None:
    other = spark.newSession()
    assert read(other, api, tmp_path, dataTypes="trade").where("symbol = 'ETHUSD'").count() > 10


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dataTypes": "trades"}, "OptionsError: dataTypes: "),
        ({"from": "yesterday"}, "OptionsError: from: expected an ISO 8601 date"),
        ({"exchange": "bitmax"}, "OptionsError: exchange: "),
        ({"numbers": "float"}, "numbers: expected decimal or double"),
        ({"datatype": "trade"}, "datatype is not a setting: did you mean dataTypes?"),
        ({"from": "2020-02-01", "to": "2020-01-01"}, "OptionsError: to: expected a date that is not before from"),
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
    assert re.search(r"LakeError: bitmex XBTUSD from 2020-\d\d-\d\dT\S+Z: The API key is not valid", str(caught.value))
    assert "a-bad-key" not in str(caught.value)


def test_a_span_without_a_beginning_is_not_taken_for_live(formats: SparkSession, tmp_path: Path) -> None:
    asked = {"exchange": "bitmex", "symbols": "XBTUSD", "dataTypes": "trade", "to": "2020-02-01", "journalDir": str(tmp_path)}
    with pytest.raises(Exception, match="OptionsError: from: expected an ISO 8601 date"):
        formats.readStream.format("tardis").options(**asked).load()


def test_a_symbol_that_is_named_twice_has_its_rows_once(formats: SparkSession, api: SampleHistoryApi, tmp_path: Path) -> None:
    once, twice = (read(formats, api, tmp_path, symbols=symbols, dataTypes="trade") for symbols in ("XBTUSD", "XBTUSD,XBTUSD"))
    assert rows_of(twice) == rows_of(once) != []


def test_a_lost_connection_is_told_for_each_symbol(formats: SparkSession, tmp_path: Path) -> None:
    with SampleHistoryApi(Recording(SampleMarket(1, 0.05), disconnects_per_day=1000)).serve_in_thread() as api:
        frame = read(formats, api, tmp_path, dataTypes="trade", withDisconnects="true", to="2020-02-01T00:05:00Z")
        lost = [(row["symbol"], row["symbols"]) for row in rows_of(frame.where("type = 'disconnect'"))]
    assert {(symbol, *symbols) for symbol, symbols in lost} == {(None, symbol) for symbol in SYMBOLS}
    assert lost.count((None, ["XBTUSD"])) == lost.count((None, ["ETHUSD"])) > 1


def test_the_examples_of_the_documents_run(
    formats: SparkSession, api: SampleHistoryApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path("docs/spark.md").read_text()
    history, buses, joins = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    [columns] = re.findall(r'spark\.read\.schema\("([^"]+)"\)', page)
    place = {"symbols": "XBTUSD", "dataTypes": "trade", "apiUrl": api.url, "cacheDir": str(tmp_path)}
    few = formats.read.schema(columns).format("tardis").options(**ASKED, **place).load()
    assert len(rows_of(few)[0]) == 2
    minute = history.replace(
        '"to": "2020-02-02"', f'"to": "2020-02-01T00:01:00Z", "apiUrl": {api.url!r}, "cacheDir": "{tmp_path}"'
    )
    assert minute != history
    names: dict[str, Any] = {"spark": formats}
    exec(minute, names)
    assert re.search(r"\| *buy\| *\d+", capsys.readouterr().out)
    exec(joins, names)
    assert names["quoted"].where("quote.bid_price < quote.ask_price").count() > 10
    assert {row["horizon"] for row in names["gains"].where("markout IS NOT NULL").collect()} == {"-1s", "1s", "1m"}
    exec(buses, names)
    assert "payload_case" in names["events"].columns
    assert names["trades"].isStreaming
    # Their servers are not there; what they are told is all that they need.
    for bus in ("kafka", "redis"):
        find_bus(from_format_options("tardis-events", names[bus], {}))


def written(folder: Path) -> list[bytes]:
    """Events in two files of the file bus; one of the records is none."""
    bus = FileBus(folder)
    values = encode([*trades(20), book_change()])
    bus.write("a", values[:15])
    bus.write("b", [*values[15:], b"not an event"])
    return values


def book_change() -> BookChange:
    at = to_timestamp(START_US + 30_000)
    return BookChange("XBTUSD", "bitmex", True, [BookLevel(9000, 1.5)], [], at, at)


def test_a_bus_comes_as_records_with_their_envelopes(formats: SparkSession, tmp_path: Path) -> None:
    values = written(tmp_path / "bus")
    rows = rows_of(formats.read.format("tardis-events").options(**{"from": "files", "fileDir": str(tmp_path / "bus")}).load())
    assert [row["value"] for row in rows] == [*values, b"not an event"]
    assert [(row["exchange"], row["symbol"], row["payload_case"], row["sequence"]) for row in rows[:2]] == [
        ("bitmex", "XBTUSD", "trade", 0),
        ("bitmex", "XBTUSD", "trade", 1),
    ]
    assert [row["position"] for row in rows[14:16]] == ["part-a.parquet:14", "part-b.parquet:0"]
    assert [row["refused_because"] is None for row in rows] == [True] * 21 + [False]
    assert dict(rows[0]["headers"]) == {"payloadCase": "trade"}


def test_a_bus_comes_as_typed_messages(formats: SparkSession, tmp_path: Path) -> None:
    written(tmp_path / "bus")
    given = {"from": "files", "fileDir": str(tmp_path / "bus"), "dataTypes": "trade,book_change"}
    rows = rows_of(formats.read.format("tardis-events").options(**given).load())
    expected = to_batch([*trades(20), book_change()], ["trade", "book_change"], exact=True).to_pylist()
    assert [{name: row[name] for name in expected[0]} for row in rows[:-1]] == expected
    assert [row["sequence"] for row in rows[:-1]] == [*range(20), 0]
    assert (rows[-1]["type"], rows[-1]["refused_because"] is None) == (None, False)


def test_of_a_bus_columns_may_be_few(formats: SparkSession, tmp_path: Path) -> None:
    values = written(tmp_path / "bus")
    place = {"from": "files", "fileDir": str(tmp_path / "bus")}

    def read_columns(ddl: str, **options: str) -> list[dict[str, Any]]:
        return rows_of(formats.read.schema(ddl).format("tardis-events").options(**place, **options).load())

    records = read_columns("sequence BIGINT, value BINARY")
    assert records[:2] == [{"sequence": 0, "value": values[0]}, {"sequence": 1, "value": values[1]}]
    messages = read_columns("price DECIMAL(38, 18), refused_because STRING, local_ts TIMESTAMP", dataTypes="trade")
    expected = to_batch(trades(20), ["trade"], exact=True).to_pylist()
    assert [[row["price"], row["local_ts"]] for row in messages[:-1]] == [[row["price"], row["local_ts"]] for row in expected]
    assert list(messages[-1]) == ["price", "refused_because", "local_ts"]
    for ddl, sentence in (
        ("cost DOUBLE", "there is no column 'cost'; there are type"),
        ("price DOUBLE", "price is of type decimal"),
    ):
        with pytest.raises(Exception, match=f"OptionsError: schema: {sentence}"):
            read_columns(ddl, dataTypes="trade")


def test_a_bus_streams_and_goes_on_where_it_was(formats: SparkSession, tmp_path: Path) -> None:
    written(tmp_path / "bus")
    given = {"from": "files", "fileDir": str(tmp_path / "bus"), "dataTypes": "trade", "lakeBatchBytes": "1"}

    def take() -> list[list[int]]:
        """The sequences of each batch."""
        batches: list[list[int]] = []
        stream = formats.readStream.format("tardis-events").options(**given).load().where("type = 'trade'").select("sequence")
        writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).foreachBatch(
            lambda batch, _: batches.append([row[0] for row in batch.collect()])
        )
        query.start().awaitTermination()
        return batches

    assert take() == [[*range(15)], [*range(15, 20)]]
    assert take() == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "OptionsError: from: expected the bus to read, one of files, kafka, redis, nats, kinesis; it is not given"),
        ({"from": "sqs"}, "from: expected files, kafka, redis, nats or kinesis"),
        ({"from": "files"}, "OptionsError: from: files needs fileDir"),
        ({"from": "kafka"}, "OptionsError: from: kafka needs kafkaBrokers and kafkaTopic"),
        ({"from": "redis", "redisStraem": "events"}, "redisstraem is not a setting: did you mean redisStream?"),
        ({"from": "files", "fileDir": "/nowhere"}, "there is no folder /nowhere to read files from"),
        ({"from": "files", "fileDir": "/nowhere", "dataTypes": "trades"}, "dataTypes: expected some of trade, "),
    ],
)
def test_what_is_wrong_with_a_bus_is_said(options: dict[str, str], sentence: str, formats: SparkSession) -> None:
    with pytest.raises(Exception) as caught:
        formats.read.format("tardis-events").options(**options).load().count()
    assert sentence in str(caught.value)


def test_history_streams_a_day_at_a_time(formats: SparkSession, api: SampleHistoryApi, tmp_path: Path) -> None:
    given = {**ASKED, "symbols": ",".join(SYMBOLS), "dataTypes": "trade", "apiUrl": api.url, "cacheDir": str(tmp_path / "cache")}
    batches: list[list[dict[str, Any]]] = []

    def take() -> None:
        stream = formats.readStream.format("tardis").options(**given).load()
        writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        writer.foreachBatch(lambda batch, _: batches.append(rows_of(batch))).start().awaitTermination()

    take()
    whole = to_batch(replayed(api, tmp_path / "cache"), ["trade"], exact=True).to_pylist()
    assert len(batches) == 2
    assert batches[0] + batches[1] == whole
    take()
    assert len(batches) == 2


async def test_live_data_streams_and_a_batch_that_was_cut_off_comes_again(formats: SparkSession, tmp_path: Path) -> None:
    batches: list[list[str]] = []
    fails = threading.Event()

    def take(batch: DataFrame, _: int) -> None:
        found = [row.trade_id for row in batch.select("trade_id").collect()]
        if found:
            batches.append(found)
            if fails.is_set():
                raise RuntimeError("the disk is full")

    async with scripted_exchange() as exchange:
        given = {"exchange": "bitmex", "symbols": "XBTUSD", "dataTypes": "trade", "journalDir": str(tmp_path / "journal")}

        def start() -> StreamingQuery:
            stream = formats.readStream.format("tardis").options(**given, exchangeUrls=f"bitmex:{exchange.url}").load()
            writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(take)
            return writer.trigger(processingTime="200 milliseconds").start()

        async def takes(count: int) -> None:
            while sum(map(len, batches)) < count:
                assert fails.is_set() or query.exception() is None
                await asyncio.sleep(0.1)

        query = await asyncio.to_thread(start)
        client = await exchange.client()
        await client.hear()
        await client.send(live_trade(1), live_trade(2))
        await takes(2)
        fails.set()
        await client.send(live_trade(3))
        await takes(3)
        assert await asyncio.to_thread(query_fails, query)
        fails.clear()
        cut_off = batches.pop()
        query = await asyncio.to_thread(start)
        await takes(3)
        assert batches[-1] == cut_off == ["3"]
        client = await exchange.client()
        await client.hear()
        await client.send(live_trade(4))
        await takes(4)
        assert [trade for batch in batches for trade in batch] == ["1", "2", "3", "4"]
        await asyncio.to_thread(query.stop)
    assert len([*(tmp_path / "journal").glob("*.arrow")]) <= 1


def query_fails(query: StreamingQuery) -> bool:
    with pytest.raises(StreamingQueryException, match="the disk is full"):
        query.awaitTermination(60)
    return True


def test_a_journal_belongs_to_one_stream(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    batch = pa.record_batch({"a": [1]})
    journal.add(batch)
    journal.add(batch)
    with pytest.raises(LakeError, match=r"another stream keeps what it hears in .*journalDir"):
        Journal(tmp_path)
    journal.remove_until(1)
    assert (journal.numbers(), journal.last) == ([2], 2)
    # An empty journal gives no number again that a checkpoint has.
    journal.remove_until(2)
    journal.begin_behind(7)
    journal.add(batch)
    assert journal.numbers() == [8]
