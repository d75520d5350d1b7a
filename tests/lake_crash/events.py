"""Files of events as the file bus leaves them: several markets, some minutes each, with what a bus brings besides.

Invariant: the same seed and count give the same files. Sessions are named in the order in which they come, so of an event that
comes twice the same copy stays, however batches are cut.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.bronze.event import Event, Tally
from tardis_machine.eventbus.ledger import Ledger, to_session_end
from tardis_machine.messages import to_timestamp
from tardis_machine.pipeline.replay import NormalizedReplay
from tardis_machine.pipeline.request import parse_normalized_request
from tardis_machine.sample import market as sample
from tardis_machine.sample.recording import Recording

__all__ = ["FEW_MARKETS", "MARKETS", "START_US", "Market", "write_files"]

Market = tuple[str, str, tuple[str, ...]]
"""Exchange, symbol, data types."""

START_US = 1_580_515_200_000_000  # 2020-02-01
FULL_RATE_EVENTS = 1_000_000
"""From so many events on the market is as busy as it can be; with fewer, minutes have fewer events."""
SESSION_MINUTES = 2
MARKETS: Sequence[Market] = (
    ("bitmex", "XBTUSD", ("trade", "book_change", "derivative_ticker", "liquidation")),
    ("bitmex", "ETHUSD", ("trade", "book_change", "derivative_ticker", "liquidation")),
    ("binance", "BTCUSDT", ("trade", "book_change")),
    ("deribit", "BTC-PERPETUAL", ("trade", "book_change", "derivative_ticker")),
)
FEW_MARKETS: Sequence[Market] = (("bitmex", "XBTUSD", ("trade", "book_change")), ("binance", "BTCUSDT", ("trade",)))
"""Each silver table takes its seconds."""
REPEATED_SHARE = 0.1
LATE_SHARE = 0.1
LATE_FILES = 5
SCHEMA = pa.schema(
    {"value": pa.binary(), "key": pa.string(), "headers": pa.map_(pa.string(), pa.string()), "destination": pa.string()}
)


def write_files(folder: Path, events: int, files: int, seed: int, markets: Sequence[Market] = MARKETS) -> list[Path]:
    """Writes at least so many events in about so many files; the files, oldest first.

    Every file has one record that is no event. Some come twice, at least one, as a publisher resends, and some after files that
    are later.
    """
    random = Random(seed)
    a_file = -(-events // files)
    contents: list[list[bytes]] = []
    records = (event.value for session in _sessions(seed, events, markets) for event in session)
    written = 0
    while written < events:
        values = list(islice(records, a_file))
        written += len(values)
        contents.append([*values, b"\xff" + len(contents).to_bytes(4)])
    for place in range(len(contents)):
        if random.random() < LATE_SHARE:
            later = min(place + random.randint(1, LATE_FILES), len(contents) - 1)
            contents[place], contents[later] = contents[later], contents[place]
    repeated = {random.randrange(len(contents))} | {place for place in range(len(contents)) if random.random() < REPEATED_SHARE}
    for place in reversed(range(len(contents))):
        if place in repeated:
            contents.insert(min(place + random.randint(1, LATE_FILES), len(contents)), contents[place])
    folder.mkdir(parents=True)
    return [_write(folder / f"part-{number:05}.parquet", values, number) for number, values in enumerate(contents)]


def _write(path: Path, values: Sequence[bytes], number: int) -> Path:
    rows = len(values)
    columns = {
        "value": pa.array(values, pa.binary()),
        "key": pa.array(["k"] * rows),
        "headers": pa.array([[("contentType", "application/x-protobuf")]] * rows, SCHEMA.field("headers").type),
        "destination": pa.array(["events"] * rows),
    }
    pq.write_table(pa.table(columns, SCHEMA), path)
    # Spark takes files in the order of their times, and keeps the time.
    os.utime(path, (START_US / 1e6 + number,) * 2)
    return path


def _sessions(seed: int, events: int, markets: Sequence[Market]) -> Iterator[list[Event]]:
    """The events of one session after the other, without end, each with its ledger."""
    recording = Recording(sample.SampleMarket(seed, min(1.0, max(0.05, events / FULL_RATE_EVENTS))), disconnects_per_day=144)
    for number in count():
        step, market = divmod(number, len(markets))
        exchange, symbol, data_types = markets[market]
        start_us = START_US + step * SESSION_MINUTES * sample.MINUTE_US
        request = parse_normalized_request(
            {
                "exchange": exchange,
                "symbols": [symbol],
                "from": to_timestamp(start_us),
                "to": to_timestamp(start_us + SESSION_MINUTES * sample.MINUTE_US),
                "dataTypes": list(data_types),
            }
        )
        replay = NormalizedReplay(request, keep_disconnects=True)
        encoder = BronzeEncoder(session_id=f"s{number:05}", origin="replay", clock_us=lambda at_us=start_us: at_us)  # type: ignore[misc]
        encoded = [
            event
            for period in replay.periods()
            for event in encoder.encode(
                replay.feed(period, recording.slice(exchange, start_us, SESSION_MINUTES, period.filters).splitlines())
            )
        ]
        yield [*encoded, *_ledger(encoder, f"s{number:05}", encoded, start_us)]


def _ledger(encoder: BronzeEncoder, session_id: str, events: Sequence[Event], now_us: int) -> list[Event]:
    by_stream: dict[int, list[Event]] = {}
    for event in events:
        by_stream.setdefault(id(event.stream), []).append(event)
    ledger = Ledger(Path())
    ledger.start(session_id, "files", "replay", {}, now_us)
    ledger.add([Tally(own) for own in by_stream.values()], now_us)
    session = ledger.end(session_id, complete=True, reason="", now_us=now_us)
    assert session is not None
    return encoder.encode_session_end(to_session_end(session))
