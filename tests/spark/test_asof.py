"""As-of joins and markouts against their definition in plain Python, in batches and on streams, whatever the buckets."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions

from tardis_machine.errors import OptionsError
from tardis_machine.lakehouse.sql import register_tables
from tardis_machine.messages import BookChange, BookLevel, to_timestamp
from tardis_machine.spark import asof_join, markouts
from tests.spark.lake_under_test import START_US, LakeUnderTest, encode, trades

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(600)

START = datetime(2020, 2, 1, 11, 59, 50, tzinfo=UTC)
LEFT = "exchange STRING, symbol STRING, hedge STRING, local_ts TIMESTAMP, event_ts TIMESTAMP, n INT, price DECIMAL(38, 18), side STRING"
RIGHT = "exchange STRING, symbol STRING, local_ts TIMESTAMP, told_ts TIMESTAMP, sequence INT, mid DECIMAL(38, 18)"

Row = dict[str, Any]


def rows_of(seed: int) -> tuple[list[Row], list[Row]]:
    """Symbols that are busy, quiet, or have nothing on one side; many rows at one instant; nulls. Times in steps, so that they meet."""
    pick = random.Random(seed)

    def at(limit: int) -> datetime | None:
        return None if pick.random() < 0.02 else START + timedelta(milliseconds=250 * pick.randrange(limit))

    left, right = [], []
    for symbol, asked, told in (("busy", 60, 80), ("quiet", 15, 3), ("asked", 5, 0), ("told", 0, 5), (None, 3, 3)):
        for _ in range(asked):
            hedge, side = pick.choice(["busy", "quiet", None]), pick.choice(["buy", "sell", "unknown"])
            price = Decimal(pick.randrange(9000, 9010))
            left.append(
                {
                    "exchange": "x",
                    "symbol": symbol,
                    "hedge": hedge,
                    "local_ts": at(400),
                    "event_ts": at(400),
                    "price": price,
                    "side": side,
                }
            )
        times = [(at(400), at(400)) for _ in range(told)]
        right += [
            {"exchange": "x", "symbol": symbol, "local_ts": local, "told_ts": when, "mid": Decimal(pick.randrange(9000, 9010))}
            for local, when in times
        ]
    pick.shuffle(left)
    pick.shuffle(right)
    return [{**row, "n": n} for n, row in enumerate(left)], [{**row, "sequence": n} for n, row in enumerate(right)]


def defined(
    asked: Row,
    right: Sequence[Row],
    *,
    on: str = "local_ts",
    right_on: str = "local_ts",
    symbol: str = "symbol",
    after: timedelta = timedelta(0),
    max_age: timedelta | None = timedelta(minutes=1),
    at_same_instant: bool = False,
) -> Row | None:
    """The definition."""
    if asked[on] is None or asked[symbol] is None:
        return None
    instant = asked[on] + after
    known = [
        row
        for row in right
        if row["symbol"] == asked[symbol]
        and row[right_on] is not None
        and (row[right_on] < instant or (at_same_instant and row[right_on] == instant))
    ]
    last = max(known, key=lambda row: (row[right_on], row["sequence"]), default=None)
    return None if last is None or (max_age is not None and instant - last[right_on] > max_age) else last


def frame(spark: SparkSession, rows: Sequence[Row], ddl: str) -> DataFrame:
    names = [part.split()[0] for part in ddl.replace("DECIMAL(38, 18)", "DECIMAL").split(", ")]
    return spark.createDataFrame([tuple(row[name] for name in names) for row in rows], ddl)


SECOND = timedelta(seconds=1)
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"bucket": "5m"}, {}),
    # Many buckets, far fewer than the age that counts, and none that is near.
    ({"bucket": "1s", "max_age": "7s", "at_same_instant": True}, {"max_age": 7 * SECOND, "at_same_instant": True}),
    ({"bucket": "3s", "max_age": None, "horizon": "-10s"}, {"max_age": None, "after": -10 * SECOND}),
    (
        {"bucket": "10s", "horizon": "1500ms", "by": {"exchange": "exchange", "hedge": "symbol"}},
        {"after": 1.5 * SECOND, "symbol": "hedge"},
    ),
    ({"bucket": "10s", "on": "event_ts", "right_on": "told_ts"}, {"on": "event_ts", "right_on": "told_ts"}),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_a_batch_has_what_the_definition_says(spark: SparkSession, case: int) -> None:
    arguments, meaning = CASES[case]
    left, right = rows_of(case)
    joined = asof_join(frame(spark, left, LEFT), frame(spark, right, RIGHT), order=["sequence"], name="top", **arguments)
    assert joined.columns == [*frame(spark, [], LEFT).columns, "top"]
    found = {row["n"]: row["top"] and row["top"]["sequence"] for row in joined.select("n", "top").collect()}
    expected = {row["n"]: (top := defined(row, right, **meaning)) and top["sequence"] for row in left}
    assert found == expected
    assert len({value for value in found.values() if value is not None}) > 10


def expected_markouts(
    left: Sequence[Row], right: Sequence[Row], horizons: dict[str, timedelta], *, symbol: str, reference: str
) -> dict[tuple[int, str], tuple[Any, Any]]:
    result = {}
    for row in left:
        now = defined(row, right, symbol=symbol)
        base = row["price"] if reference == "price" else now and now["mid"]
        for name, after in horizons.items():
            then = defined(row, right, symbol=symbol, after=after)
            sign = {"buy": 1, "sell": -1}.get(row["side"])
            markout = None if then is None or base is None or sign is None else (then["mid"] - base) * sign
            result[row["n"], name] = then and then["mid"], markout
    return result


HORIZONS = {"1s": SECOND, "-3s": -3 * SECOND, "1m": timedelta(minutes=1), "0s": timedelta(0)}


@pytest.mark.parametrize("reference", ["price", "mid"])
def test_markouts_of_any_horizon_and_of_another_symbol(spark: SparkSession, reference: Any) -> None:
    left, right = rows_of(7)
    by = {"exchange": "exchange", "hedge" if reference == "mid" else "symbol": "symbol"}
    frames = frame(spark, left, LEFT), frame(spark, right, RIGHT)
    told = markouts(*frames, [*HORIZONS], reference=reference, by=by, order=["sequence"], bucket="20s")
    found = {(row["n"], row["horizon"]): (row["mid"], row["markout"]) for row in told.collect()}
    symbol = "hedge" if reference == "mid" else "symbol"
    assert found == expected_markouts(left, right, HORIZONS, symbol=symbol, reference=reference)
    assert any(markout for _, markout in found.values())


def test_streams_have_what_the_definition_says_when_the_watermark_has_passed(spark: SparkSession, tmp_path: Path) -> None:
    left, right = rows_of(11)
    for rows in (left, right):
        rows.sort(key=lambda row: row["local_ts"] or START)

    def stream_of(name: str, rows: Sequence[Row], ddl: str) -> DataFrame:
        # In files that come one after the other, and a last row long after all others.
        size = len(rows) // 4 + 1
        last = {**rows[-1], "symbol": "told", "local_ts": START + timedelta(hours=1)}
        for number, part in enumerate([*(rows[at : at + size] for at in range(0, len(rows), size)), [last], [last]]):
            frame(spark, part, ddl).coalesce(1).write.parquet(str(tmp_path / name / f"{number}"))
        return spark.readStream.schema(ddl).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / name / "*"))

    trades, tops = stream_of("left", left, LEFT), stream_of("right", right, RIGHT)
    horizons = {"1s": SECOND, "-3s": -3 * SECOND}
    told = markouts(trades, tops, [*horizons], reference="mid", order=["sequence"], max_age="1m", bucket="10s", watermark="5s")
    query = told.writeStream.format("memory").queryName("marked").outputMode("append").trigger(availableNow=True).start()
    query.awaitTermination(300)
    found = [(row["n"], row["horizon"], row["mid"], row["markout"]) for row in spark.table("marked").collect()]
    whole = expected_markouts(left, right, horizons, symbol="symbol", reference="mid")
    timed = {row["n"] for row in left if row["local_ts"] is not None}
    assert sorted(found, key=repr) == sorted(((*key, *value) for key, value in whole.items() if key[0] in timed), key=repr)
    assert any(markout for *_, markout in found)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"horizon": "soon"}, "horizon: 'soon' is no length of time; it takes such as 100ms, 1s, -10s, 5m and 1h"),
        ({"max_age": "-1s"}, "max_age: expected a length of time that is not negative, got '-1s'"),
        ({"bucket": "0s"}, "bucket: expected a length of time above zero, got '0s'"),
        (
            {"right_on": "event_ts"},
            "right_on: right has no column 'event_ts'; it has exchange, symbol, local_ts, told_ts, sequence, mid",
        ),
        ({"by": {"hedge": "pair"}}, "by: right has no column 'pair'; it has exchange, symbol, local_ts, told_ts, sequence, mid"),
        ({"on": "n"}, "on: expected a TIMESTAMP, n of left is of type integer"),
        ({"order": ["seq"]}, "order: right has no column 'seq'; it has exchange, symbol, local_ts, told_ts, sequence, mid"),
        ({"name": "Price"}, "left: it has a column 'Price' already; rename that, or drop it"),
    ],
)
def test_what_is_wrong_is_named(spark: SparkSession, arguments: Any, sentence: str) -> None:
    with pytest.raises(OptionsError) as failure:
        asof_join(frame(spark, [], LEFT), frame(spark, [], RIGHT), **arguments)
    assert str(failure.value) == sentence


def test_what_can_not_be_joined_is_named(spark: SparkSession) -> None:
    left, right = frame(spark, [], LEFT), frame(spark, [], RIGHT)
    with pytest.raises(OptionsError, match=r"^right: tags is a map, .* leave it out: right.drop\('tags'\)$"):
        asof_join(left, right.withColumn("tags", functions.create_map("symbol", "mid")))
    with pytest.raises(OptionsError, match=r"^trades: it has a column 'mid' already; rename that, or drop it$"):
        markouts(left.withColumn("mid", functions.lit(1)), right)
    changing = spark.readStream.format("rate").load().selectExpr("'x' AS exchange", "'y' AS symbol", "timestamp AS local_ts")
    with pytest.raises(OptionsError, match=r"^right: expected a stream as left is one, or a batch as left is one; "):
        asof_join(left, changing)


def test_the_example_of_the_documents_runs(lake: LakeUnderTest) -> None:
    """On a lake that has trades of one symbol and tops of two."""
    books = [
        BookChange(
            symbol=symbol,
            exchange="bitmex",
            is_snapshot=n == 0,
            bids=[BookLevel(8990 + n % 5, n + 1)],
            asks=[BookLevel(9010 + n % 3, n + 1)],
            timestamp=to_timestamp(START_US + n * 1000),
            local_timestamp=to_timestamp(START_US + n * 1000),
        )
        for symbol in ("XBTUSD", "ETHUSD")
        for n in range(40)
    ]
    lake.bus.write("a", encode([*books, *trades(20, start=10)]))
    lake.ingest(until="gold", gold=["top_of_book"])
    register_tables(lake.spark, lake.lake)
    _, _, section = Path("docs/lakehouse.md").read_text().partition("## Joins by time\n")
    example = section.partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {"spark": lake.spark, "F": functions}
    exec(example, names)
    assert {row["spread"] is not None for row in names["spreads"].collect()} == {True}
    assert {(row["symbol"], row["horizon"]) for row in names["gains"].collect()} == {
        ("XBTUSD", h) for h in ("-1s", "100ms", "5s")
    }
    assert names["spill"].where("mid IS NOT NULL").count() == 20
