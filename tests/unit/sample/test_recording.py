from __future__ import annotations

import json
import re
from collections import Counter
from decimal import Decimal
from hashlib import sha256

import pytest

from tardis_machine.errors import OptionsError
from tardis_machine.filters import Filter
from tardis_machine.sample.market import EVERYDAY, MINUTE_US, MOSTLY_UPDATES, MessageMix, SampleMarket
from tardis_machine.sample.recording import Recording
from tardis_machine.sample.venues import VENUES
from tests.unit.sample.readers import READERS, Books, OkexBooks

MIDNIGHT = 1_704_067_200 // 60  # 2024-01-01
OLD_MIDNIGHT = 1_577_836_800 // 60  # 2020-01-01
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{7}Z \{.*\}")

# The start of the SHA-256 of the first minute of 2024, seed 1: with everyday orders, and with those that are mostly updates. It changes
# only for a reason that the change log gives.
GOLDEN = {
    "bitmex": ("b86363b8b94ecb06", "62721f33fca8ef69"),
    "binance": ("0f5b41453fec53c7", "fa859c3d1098565c"),
    "binance-us": ("b53fe2ddc45c1196", "42c993bbac557605"),
    "binance-jersey": ("0d255297757e14d4", "4c69d198fb66c757"),
    "binance-futures": ("1a71743e040fc2ae", "5e4d835a7428bab6"),
    "binance-delivery": ("77b1f751ada30186", "2589ddba966dfc12"),
    "coinbase": ("7f767ddcbd72b139", "1de5c7dd260e6e84"),
    "deribit": ("bdd1c1c9035cfb59", "fe4f5f718f804c37"),
    "okex": ("5341b48fbbd80e47", "cb31aa69f04998d4"),
    "okex-swap": ("9d65121753ccbbce", "5b509beacc978d44"),
    "okex-futures": ("68ea115e2e207172", "9973e86de84ea3ed"),
    "okex-options": ("7dfc0d12e27c4fc2", "9061a7b1961a98f4"),
    "okex-spreads": ("ec49aee876db5fe6", "4cee42595b81511c"),
}


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Recording(SampleMarket(1, activity=0.5), disconnects_per_day=0)


def _messages(data: bytes) -> list[str]:
    return [line[29:] for line in data.decode().split("\n")[:-1]]


@pytest.mark.parametrize("exchange", VENUES)
def test_a_seed_always_gives_the_same_bytes(exchange: str) -> None:
    data, calm = (
        Recording(SampleMarket(1, message_mix=message_mix)).minute(exchange, MIDNIGHT)
        for message_mix in (EVERYDAY, MOSTLY_UPDATES)
    )
    assert (sha256(data).hexdigest()[:16], sha256(calm).hexdigest()[:16]) == GOLDEN[exchange]
    assert Recording(SampleMarket(2)).minute(exchange, MIDNIGHT) != data


@pytest.mark.parametrize(
    ("message_mix", "shares"),
    [
        (EVERYDAY, {"orderBookL2 update": 0.6, "orderBookL2 delete": 0.165, "orderBookL2 insert": 0.165, "trade insert": 0.07}),
        (
            MOSTLY_UPDATES,
            {"orderBookL2 update": 0.65, "orderBookL2 delete": 0.09, "orderBookL2 insert": 0.09, "trade insert": 0.17},
        ),
    ],
    ids=["everyday", "mostly updates"],
)
def test_messages_divide_as_the_mix_says(message_mix: MessageMix, shares: dict[str, float]) -> None:
    recording = Recording(SampleMarket(2, message_mix=message_mix), disconnects_per_day=0)
    filters = [Filter(channel, ["XBTUSD"]) for channel in ("trade", "orderBookL2")]
    messages = _messages(recording.slice("bitmex", (MIDNIGHT + 1) * MINUTE_US, 20, filters))
    kinds = Counter(f"{message['table']} {message['action']}" for message in map(json.loads, messages))
    assert {kind: count / len(messages) for kind, count in kinds.items()} == pytest.approx(shares, abs=0.01)


def test_an_aggregate_trade_holds_all_that_a_taker_got_at_a_price(recording: Recording) -> None:
    trades, aggregates = (
        [
            json.loads(message)["data"]
            for message in _messages(recording.minute("binance", MIDNIGHT, [Filter(channel, ["btcusdt"])]))
        ]
        for channel in ("trade", "aggTrade")
    )
    by_identity = {trade["t"]: trade for trade in trades}
    assert [identity for each in aggregates for identity in range(each["f"], each["l"] + 1)] == [trade["t"] for trade in trades]
    assert any(each["f"] < each["l"] for each in aggregates)
    for each in aggregates:
        held = [by_identity[identity] for identity in range(each["f"], each["l"] + 1)]
        assert {trade["p"] for trade in held} == {each["p"]}
        assert sum(Decimal(trade["q"]) for trade in held) == Decimal(each["q"])


@pytest.mark.parametrize("exchange", VENUES)
@pytest.mark.parametrize("index", [MIDNIGHT, MIDNIGHT + 1, OLD_MIDNIGHT])
def test_lines_are_well_formed_sorted_and_of_their_minute(recording: Recording, exchange: str, index: int) -> None:
    data = recording.minute(exchange, index)
    assert data.endswith(b"\n")
    lines = data.decode().split("\n")[:-1]
    assert len(lines) > 50
    for line in lines:
        assert LINE.fullmatch(line)
        json.loads(line[29:])
    stamps = [line[:28] for line in lines]
    assert stamps == sorted(stamps)
    assert len({stamp[:16] for stamp in stamps}) == 1
    assert len({stamp[26] for stamp in stamps}) > 5


@pytest.mark.parametrize("exchange", READERS)
def test_books_from_the_lines_are_the_true_ones_at_the_end_of_every_minute(recording: Recording, exchange: str) -> None:
    _check_books(recording, exchange, READERS[exchange](), MIDNIGHT)


@pytest.mark.parametrize("exchange", ["okex", "okex-swap", "okex-futures", "okex-options"])
def test_okex_books_in_its_other_channels(recording: Recording, exchange: str) -> None:
    _check_books(recording, exchange, OkexBooks("books"), MIDNIGHT)
    prefix = {"okex": "spot", "okex-swap": "swap", "okex-futures": "futures", "okex-options": "option"}[exchange]
    _check_books(recording, exchange, OkexBooks(f"{prefix}/depth"), OLD_MIDNIGHT)
    _check_books(recording, exchange, OkexBooks(f"{prefix}/depth_l2_tbt"), OLD_MIDNIGHT)


def _book_data(recording: Recording, exchange: str, books: Books, index: int) -> bytes:
    return recording.minute(exchange, index, [Filter(channel) for channel in books.channels])


def _check_books(recording: Recording, exchange: str, books: Books, first: int) -> None:
    for index in range(first, first + 3):
        books.feed(_book_data(recording, exchange, books, index))
        for instrument in recording.instruments(exchange, index * MINUTE_US):
            symbol = instrument.symbol.lower() if exchange.startswith("binance") else instrument.symbol
            bids, asks = recording.book_at(exchange, instrument.symbol, (index + 1) * MINUTE_US)
            assert books.bids[symbol] == bids
            assert books.asks[symbol] == asks
            assert min(len(bids), len(asks)) >= 3


@pytest.mark.parametrize("exchange", READERS)
def test_after_a_lost_connection_everything_starts_anew(exchange: str) -> None:
    recording = Recording(SampleMarket(4, activity=0.5), disconnects_per_day=1_440)
    index = MIDNIGHT + 77
    outage = recording.outage(exchange, index)
    assert outage is not None
    lost, back = outage
    assert index * MINUTE_US * 10 < lost < back < (index + 1) * MINUTE_US * 10
    books = READERS[exchange]()
    _, after = _book_data(recording, exchange, books, index).split(b"\n\n")
    books.feed(after)
    assert books.snapshots == len(recording.instruments(exchange, index * MINUTE_US))
    for instrument in recording.instruments(exchange, index * MINUTE_US):
        symbol = instrument.symbol.lower() if exchange.startswith("binance") else instrument.symbol
        assert (books.bids[symbol], books.asks[symbol]) == recording.book_at(exchange, instrument.symbol, (index + 1) * MINUTE_US)


def test_no_line_arrives_while_the_connection_is_away() -> None:
    recording = Recording(SampleMarket(4), disconnects_per_day=1_440)
    whole = Recording(SampleMarket(4), disconnects_per_day=0).minute("bitmex", MIDNIGHT + 77).decode().split("\n")
    outage = recording.outage("bitmex", MIDNIGHT + 77)
    assert outage is not None
    lost, back = (f"{(at - (MIDNIGHT + 77) * MINUTE_US * 10) / 10_000_000:010.7f}" for at in outage)
    lines = recording.minute("bitmex", MIDNIGHT + 77).decode().split("\n")
    inside = [line for line in lines if lost <= line[17:27] < back and '"action":"partial"' not in line]
    missed = [line for line in whole if lost <= line[17:27] <= back]
    assert not inside
    assert missed
    assert set(missed).isdisjoint(lines)
    assert [line for line in whole if line and line[17:27] < lost] == lines[: lines.index("")]


def test_connections_are_lost_as_often_as_asked() -> None:
    recording = Recording(disconnects_per_day=24)
    lost = sum(recording.outage("bitmex", MIDNIGHT + minute) is not None for minute in range(30 * 1_440))
    assert lost == pytest.approx(30 * 24, rel=0.15)
    assert any(
        recording.outage("bitmex", index) != recording.outage("coinbase", index) for index in range(MIDNIGHT, MIDNIGHT + 1_440)
    )


@pytest.mark.parametrize("exchange", READERS)
def test_a_day_starts_with_snapshots_and_no_other_minute_does(recording: Recording, exchange: str) -> None:
    first, second = READERS[exchange](), READERS[exchange]()
    first.feed(_book_data(recording, exchange, first, MIDNIGHT))
    second.feed(_book_data(recording, exchange, second, MIDNIGHT + 1))
    assert first.snapshots == len(recording.instruments(exchange, MIDNIGHT * MINUTE_US))
    assert second.snapshots == 0


@pytest.mark.parametrize("exchange", VENUES)
@pytest.mark.parametrize("index", [MIDNIGHT, OLD_MIDNIGHT])
def test_every_channel_can_be_asked_for_alone(recording: Recording, exchange: str, index: int) -> None:
    venue = VENUES[exchange]
    whole = _messages(recording.minute(exchange, index))
    found = []
    for channel in venue.channels:
        alone = _messages(recording.minute(exchange, index, [Filter(channel)]))
        iterator = iter(whole)
        assert all(message in iterator for message in alone), f"{channel} is no part of the whole"
        found += alone
    common = len(whole) - len(found)
    assert 0 <= common < 1_000
    assert len(found) > 100


def test_filters_take_channels_and_symbols() -> None:
    recording = Recording(SampleMarket(1), disconnects_per_day=0)
    index = MIDNIGHT + 5
    trades = recording.minute("bitmex", index, [Filter("trade", ["XBTUSD"])])
    assert trades
    for message in map(json.loads, _messages(trades)):
        assert message["table"] == "trade"
        assert {row["symbol"] for row in message["data"]} == {"XBTUSD"}
    both = recording.minute("bitmex", index, [Filter("trade", ["XBTUSD"]), Filter("orderBookL2", ["ETHUSD"])])
    found = {(message["table"], row["symbol"]) for message in map(json.loads, _messages(both)) for row in message["data"]}
    assert found == {("trade", "XBTUSD"), ("orderBookL2", "ETHUSD")}
    assert recording.minute("bitmex", index, [Filter("trade", [])]) == recording.minute("bitmex", index, [Filter("trade")])
    assert recording.minute("bitmex", index, [Filter("trade", ["NONE"])]) == b""
    assert recording.minute("bitmex", index, [Filter("chat")]) == b""
    assert recording.minute("binance", index, [Filter("trade", ["BTCUSDT"])]) == b""
    assert recording.minute("binance", index, [Filter("trade", ["btcusdt"])])


def test_a_message_of_several_symbols_comes_when_one_of_them_is_asked_for(recording: Recording) -> None:
    first = json.loads(_messages(recording.minute("bitmex", MIDNIGHT, [Filter("instrument", ["ETHUSD"])]))[0])
    assert first["action"] == "partial"
    assert {row["symbol"] for row in first["data"]} == {"XBTUSD", "ETHUSD", "XBTH24"}
    summaries = _messages(recording.minute("okex-options", MIDNIGHT, [Filter("opt-summary", [])]))
    assert len(json.loads(summaries[-1])["data"]) == 10


def test_an_empty_line_comes_with_any_filter() -> None:
    recording = Recording(SampleMarket(4), disconnects_per_day=1_440)
    assert recording.minute("bitmex", MIDNIGHT + 9, [Filter("chat")]) == b"\n"


def test_channels_that_belong_to_no_instrument() -> None:
    recording = Recording(SampleMarket(1), disconnects_per_day=0)
    for exchange, channel, symbol in (
        ("binance-delivery", "indexPrice", "btcusd"),
        ("deribit", "deribit_price_index", "btc_usd"),
        ("okex-swap", "index-tickers", "BTC-USDT"),
        ("okex-options", "index-tickers", "BTC-USD"),
    ):
        assert len(_messages(recording.minute(exchange, MIDNIGHT + 1, [Filter(channel, [symbol])]))) == 60
    assert len(_messages(recording.minute("okex-swap", OLD_MIDNIGHT + 1, [Filter("index/ticker", ["BTC-USDT"])]))) == 60


def test_liquidations_are_said_in_each_language() -> None:
    recording = Recording(SampleMarket(1), disconnects_per_day=0)

    def messages(exchange: str, channel: str, first: int) -> list[str]:
        return [
            each for index in range(first, first + 5) for each in _messages(recording.minute(exchange, index, [Filter(channel)]))
        ]

    bitmex = [json.loads(each) for each in messages("bitmex", "liquidation", MIDNIGHT + 1)]
    assert [each["action"] for each in bitmex] == ["insert", "delete"] * (len(bitmex) // 2)
    assert bitmex
    assert all(json.loads(each)["data"]["o"]["X"] == "FILLED" for each in messages("binance-futures", "forceOrder", MIDNIGHT + 1))
    assert any('"liquidation":"T"' in each for each in messages("deribit", "trades", MIDNIGHT + 1))
    assert all("details" in json.loads(each)["data"][0] for each in messages("okex-swap", "liquidation-orders", MIDNIGHT + 1))
    assert messages("okex-swap", "swap/liquidation", OLD_MIDNIGHT + 1)
    assert not messages("okex-swap", "liquidation-orders", OLD_MIDNIGHT + 1)


def test_a_slice_is_its_minutes_one_after_the_other(recording: Recording) -> None:
    parts = [recording.minute("coinbase", MIDNIGHT + minute) for minute in range(3)]
    assert recording.slice("coinbase", MIDNIGHT * MINUTE_US, 3) == b"".join(parts)
    assert recording.slice("coinbase", MIDNIGHT * MINUTE_US, 0) == b""


def test_what_was_made_is_kept_within_bounds() -> None:
    recording = Recording(SampleMarket(1, activity=0.2), keep_bytes=1_000_000)
    data = recording.minute("bitmex", MIDNIGHT)
    assert recording.minute("bitmex", MIDNIGHT) is data
    for minute in range(1, 10):
        recording.minute("bitmex", MIDNIGHT + minute)
    again = recording.minute("bitmex", MIDNIGHT)
    assert again is not data
    assert again == data


def test_an_unknown_exchange_or_symbol_is_named() -> None:
    recording = Recording()
    with pytest.raises(OptionsError, match="'mtgox' is not in the sample market; it has bitmex"):
        recording.minute("mtgox", MIDNIGHT)
    with pytest.raises(OptionsError, match="'DOGE' is not in the sample of bitmex; it has XBTUSD"):
        recording.book_at("bitmex", "DOGE", 0)
    assert recording.instrument("binance", "btcusdt", MIDNIGHT * MINUTE_US).symbol == "BTCUSDT"
