"""Live feeds without I/O: what they say, what they make of what they hear, and when they notice that something is missing."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest

from tardis_machine.errors import OptionsError
from tardis_machine.exchanges import EXCHANGES, Feed, FrameKind, HttpRequest
from tardis_machine.filters import Filter
from tardis_machine.pipeline.normalizer import Normalizer

LIVE = {name: exchange for name, exchange in EXCHANGES.items() if exchange.live is not None}
SYMBOLS = {
    "bitmex": "XBTUSD",
    "binance": "btcusdt",
    "binance-us": "btcusd",
    "binance-futures": "btcusdt",
    "binance-delivery": "btcusd_perp",
    "bybit": "BTCUSDT",
    "bybit-spot": "BTCUSDT",
    "bybit-options": "BTC-30DEC26-100000-C",
    "coinbase": "BTC-USD",
    "deribit": "BTC-PERPETUAL",
    "kraken": "BTC/USD",
    "okex": "BTC-USDT",
    "okex-futures": "BTC-USD-261225",
    "okex-swap": "BTC-USDT-SWAP",
    "okex-options": "BTC-USD-261225-60000-C",
    "okex-spreads": "BTC-USDT_BTC-USDT-SWAP",
}


def feed_of(name: str, *filters: Filter) -> Feed:
    live = EXCHANGES[name].live
    assert live is not None
    return live.feed(name, filters)


def said(feed: Feed) -> list[Any]:
    return [json.loads(frame) for frame in feed.subscribe()]


@pytest.mark.parametrize("name", LIVE)
def test_every_mapper_has_a_feed_that_asks_for_what_it_reads(name: str) -> None:
    """What the frames say, read as a client's subscription is, are the filters of the mappers, but for what is fetched."""
    exchange = LIVE[name]
    assert exchange.live is not None
    fetched = {"depthSnapshot", "openInterest", "liquidations", "snapshot"}
    filters = Normalizer(name, exchange.data_types, realtime=True).filters([SYMBOLS[name]])
    asked: set[tuple[str, str | None]] = set()
    for some in exchange.live.feed.split(name, filters):
        feed = exchange.live.feed(name, some)
        assert feed.path == "" or feed.path.startswith("/")
        for frame in said(feed):
            for item in exchange.subscriptions(frame, 2_000_000_000_000_000) or ():
                asked |= {(item.channel, symbol) for symbol in (item.symbols or [None])}  # type: ignore[union-attr]
    channels = {channel for channel, _ in asked}
    assert {item.channel for item in filters if item.channel not in fetched} <= channels


def test_many_symbols_are_asked_for_in_portions() -> None:
    symbols = [f"S{number}" for number in range(25)]
    frames = said(feed_of("bitmex", Filter("trade", symbols)))
    assert [len(frame["args"]) for frame in frames] == [10, 10, 5]
    frames = said(feed_of("binance", Filter("trade", [f"s{number}" for number in range(250)])))
    assert [(len(frame["params"]), frame["id"]) for frame in frames] == [(100, 1), (100, 2), (50, 3)]


def test_without_symbols_only_bitmex_has_an_answer() -> None:
    assert said(feed_of("bitmex", Filter("trade"))) == [{"op": "subscribe", "args": ["trade"]}]
    for name in LIVE.keys() - {"bitmex"}:
        channel = "trades-all" if name.startswith("okex") else {"coinbase": "match"}.get(name, "trade")
        with pytest.raises(OptionsError, match=f"live data of {name} takes at least one symbol"):
            feed_of(name, Filter(channel)).subscribe()


@pytest.mark.parametrize(
    "pack",
    [bytes, gzip.compress, lambda raw: zlib.compress(raw, wbits=-15)],
    ids=["plain", "gzip", "deflate"],
)
def test_binary_frames_hold_text(pack: Any) -> None:
    raw = b'{"table":"trade"}'
    assert feed_of("bitmex", Filter("trade")).plain(pack(raw)) == raw


KINDS: dict[str, list[tuple[Any, FrameKind]]] = {
    "bitmex": [
        ({"info": "Welcome"}, FrameKind.IGNORED),
        ({"success": True, "subscribe": "trade:XBTUSD"}, FrameKind.IGNORED),
        ({"status": 429, "error": "Rate limit exceeded"}, FrameKind.ERROR),
        ({"table": "trade", "action": "insert", "data": []}, FrameKind.DATA),
        ({"table": "orderBookL2", "action": "update", "data": [{"symbol": "XBTUSD", "id": 1}]}, FrameKind.IGNORED),
        ({"table": "orderBookL2", "action": "partial", "data": [{"symbol": "XBTUSD", "id": 1}]}, FrameKind.DATA),
        ({"table": "orderBookL2", "action": "update", "data": [{"symbol": "XBTUSD", "id": 1}]}, FrameKind.DATA),
    ],
    "coinbase": [
        ({"type": "subscriptions"}, FrameKind.IGNORED),
        ({"type": "heartbeat"}, FrameKind.HEARTBEAT),
        ({"type": "error", "message": "Failed to subscribe"}, FrameKind.ERROR),
        ({"type": "l2update", "product_id": "BTC-USD"}, FrameKind.IGNORED),
        ({"type": "snapshot", "product_id": "BTC-USD"}, FrameKind.DATA),
        ({"type": "l2update", "product_id": "BTC-USD"}, FrameKind.DATA),
        ({"type": "last_match"}, FrameKind.IGNORED),
    ],
    "deribit": [
        ({"id": 1, "result": "ok"}, FrameKind.IGNORED),
        ({"method": "heartbeat", "params": {"type": "heartbeat"}}, FrameKind.HEARTBEAT),
        ({"id": 3, "error": {"code": 13009, "message": "unauthorized"}}, FrameKind.ERROR),
        ({"method": "subscription", "params": {"channel": "trades.X.100ms", "data": []}}, FrameKind.DATA),
    ],
    "kraken": [
        ({"channel": "status", "type": "update"}, FrameKind.IGNORED),
        ({"channel": "heartbeat"}, FrameKind.HEARTBEAT),
        ({"method": "pong"}, FrameKind.HEARTBEAT),
        ({"method": "subscribe", "success": True}, FrameKind.IGNORED),
        ({"method": "subscribe", "success": False, "error": "Currency pair not supported"}, FrameKind.ERROR),
        ({"channel": "trade", "type": "update", "data": []}, FrameKind.DATA),
    ],
    "bybit": [
        ({"success": True, "op": "subscribe"}, FrameKind.IGNORED),
        ({"success": True, "ret_msg": "pong", "op": "ping"}, FrameKind.HEARTBEAT),
        ({"op": "pong"}, FrameKind.HEARTBEAT),
        ({"success": False, "ret_msg": "error:handler not found"}, FrameKind.ERROR),
        ({"topic": "publicTrade.BTCUSDT", "type": "snapshot", "data": []}, FrameKind.DATA),
        ({"topic": "orderbook.50.BTCUSDT", "type": "delta", "data": {"u": 2}}, FrameKind.IGNORED),
    ],
    "okex": [
        ({"event": "subscribe"}, FrameKind.IGNORED),
        ({"event": "error", "code": "60012", "msg": "Illegal request"}, FrameKind.ERROR),
        ({"arg": {"channel": "trades-all", "instId": "X"}, "data": []}, FrameKind.DATA),
        ({"arg": {"channel": "books", "instId": "X"}, "action": "update", "data": [{"seqId": 2}]}, FrameKind.IGNORED),
    ],
    "binance": [
        ({"result": None, "id": 1}, FrameKind.IGNORED),
        ({"error": {"code": 2, "msg": "Invalid request"}, "id": 1}, FrameKind.ERROR),
        ({"stream": "btcusdt@trade", "data": {}}, FrameKind.DATA),
    ],
}


@pytest.mark.parametrize("name", KINDS)
def test_what_a_message_is(name: str) -> None:
    feed = feed_of(name, Filter("trade", [SYMBOLS[name]]))
    assert [feed.classify(message) for message, _ in KINDS[name]] == [kind for _, kind in KINDS[name]]


@pytest.mark.parametrize(
    ("name", "message", "kind"),
    [
        ("bitmex", {"status": 429, "error": "Rate limit exceeded, retry in 1 seconds."}, "rate_limit"),
        ("bitmex", {"status": 401, "error": "Signature not valid."}, "auth"),
        ("bitmex", {"status": 400, "error": "Unknown table: x"}, "other"),
        ("binance", {"error": {"code": -1003, "msg": "Way too much"}}, "rate_limit"),
        ("coinbase", {"type": "error", "message": "Failed to subscribe", "reason": "level2 requires authentication"}, "auth"),
        ("deribit", {"error": {"code": 10028, "message": "too_many_requests"}}, "rate_limit"),
        ("deribit", {"error": {"code": 13009, "message": "unauthorized"}}, "auth"),
        ("kraken", {"success": False, "error": "Exceeded msg rate"}, "rate_limit"),
        ("bybit", {"success": False, "ret_msg": "Too many visits."}, "rate_limit"),
        ("okex", {"event": "error", "code": "60014", "msg": "Requests too frequent"}, "rate_limit"),
        ("okex", {"event": "error", "code": "60011", "msg": "Please log in"}, "auth"),
        ("okex", {"event": "error", "code": "60018", "msg": "Wrong URL or channel doesn't exist"}, "other"),
    ],
)
def test_what_an_error_complains_of(name: str, message: Any, kind: str) -> None:
    assert feed_of(name, Filter("trade", ["X"])).error(message).kind == kind


def test_deribit_says_what_it_left_out_and_wants_to_be_answered() -> None:
    feed = feed_of("deribit", Filter("trades", ["BTC-PERPETUAL", "NO-SUCH"]))
    heartbeat, asked = said(feed)
    assert heartbeat["method"] == "public/set_heartbeat"
    answer = {"id": asked["id"], "result": ["trades.BTC-PERPETUAL.100ms"]}
    assert feed.classify(answer) is FrameKind.ERROR
    assert feed.error(answer).details == "not subscribed to trades.NO-SUCH.100ms"
    test = {"method": "heartbeat", "params": {"type": "test_request"}}
    assert [json.loads(frame)["method"] for frame in feed.replies(test)] == ["public/test"]
    assert not feed.replies({"method": "heartbeat", "params": {"type": "heartbeat"}})


def test_okex_pings_in_plain_text_and_has_two_addresses() -> None:
    live = EXCHANGES["okex-swap"].live
    assert live is not None
    filters = Normalizer("okex-swap", ["trade", "book_change", "liquidation"], realtime=True).filters(["BTC-USDT-SWAP"])
    feeds = [live.feed("okex-swap", some) for some in live.feed.split("okex-swap", filters)]
    assert [feed.path for feed in feeds] == ["/ws/v5/public", "/ws/v5/business"]
    [public] = said(feeds[0])
    assert public["args"] == [
        {"channel": "books", "instId": "BTC-USDT-SWAP"},
        {"channel": "liquidation-orders", "instType": "SWAP"},
    ]
    assert feeds[0].ping() == "ping"
    assert feeds[0].classify(feeds[0].decode(b"pong")) is FrameKind.HEARTBEAT


def test_bybit_has_an_address_for_each_kind_of_contract() -> None:
    live = EXCHANGES["bybit"].live
    assert live is not None
    filters = [Filter("publicTrade", ["BTCUSDT", "BTCUSD", "BTCPERP"])]
    feeds = [live.feed("bybit", some) for some in live.feed.split("bybit", filters)]
    assert [(feed.path, said(feed)[0]["args"]) for feed in feeds] == [
        ("/v5/public/linear", ["publicTrade.BTCUSDT", "publicTrade.BTCPERP"]),
        ("/v5/public/inverse", ["publicTrade.BTCUSD"]),
    ]
    assert feed_of("bybit-spot", *filters).path == "/v5/public/spot"
    options = feed_of("bybit-options", Filter("publicTrade", ["BTC-30DEC26-1-C", "BTC-30DEC26-2-C"]))
    assert (options.path, said(options)[0]["args"]) == ("/v5/public/option", ["publicTrade.BTC"])


# --- numbers -----------------------------------------------------------------------------------------------------------------


def deribit_book(change_id: int, previous: int | None) -> Any:
    data: dict[str, Any] = {"type": "snapshot" if previous is None else "change", "change_id": change_id}
    if previous is not None:
        data["prev_change_id"] = previous
    return {"method": "subscription", "params": {"channel": "book.X.100ms", "data": data}}


def okex_book(sequence: int, previous: int) -> Any:
    action = "snapshot" if previous == -1 else "update"
    return {"arg": {"channel": "books", "instId": "X"}, "action": action, "data": [{"seqId": sequence, "prevSeqId": previous}]}


def bybit_book(update: int, previous: int | None) -> Any:
    return {"topic": "orderbook.50.X", "type": "snapshot" if previous is None else "delta", "data": {"u": update}}


@pytest.mark.parametrize(
    ("name", "snapshot", "updates", "gap"),
    [
        ("deribit", deribit_book(5, None), [deribit_book(7, 5), deribit_book(9, 7)], deribit_book(12, 11)),
        ("okex", okex_book(5, -1), [okex_book(7, 5), okex_book(7, 7)], okex_book(12, 11)),
        ("bybit", bybit_book(5, None), [bybit_book(6, 5), bybit_book(7, 6)], bybit_book(9, 8)),
    ],
)
def test_a_missing_update_is_noticed(name: str, snapshot: Any, updates: list[Any], gap: Any) -> None:
    feed = feed_of(name, Filter("book", ["X"]))
    assert feed.classify(updates[0]) is FrameKind.IGNORED  # of a book that is not known yet
    for message in (snapshot, *updates):
        assert feed.classify(message) is FrameKind.DATA
        assert feed.follow(message) is None
    missing = feed.follow(gap)
    assert missing is not None
    assert "follows" in missing
    assert feed.follow(snapshot) is None  # a new snapshot begins anew


def kraken_book(kind: str, bids: str, asks: str, checksum: int) -> bytes:
    """With the digits as they are given."""

    def rows(side: str) -> str:
        pairs = (row.split(":") for row in side.split())
        return ",".join(f'{{"price":{price},"qty":{amount}}}' for price, amount in pairs)

    data = f'{{"symbol":"BTC/USD","bids":[{rows(bids)}],"asks":[{rows(asks)}],"checksum":{checksum}}}'
    return f'{{"channel":"book","type":"{kind}","data":[{data}]}}'.encode()


def test_kraken_has_checksums_for_numbers() -> None:
    feed = feed_of("kraken", Filter("book", ["BTC/USD"]))

    def missing(kind: str, bids: str, asks: str, text: str) -> str | None:
        message = feed.decode(kraken_book(kind, bids, asks, zlib.crc32(text.encode())))
        assert feed.classify(message) is FrameKind.DATA
        return feed.follow(message)

    early = feed.decode(kraken_book("update", "1.0:0", "", 0))
    assert feed.classify(early) is FrameKind.IGNORED  # of a book that is not known yet
    # Asks from low to high, bids from high to low; no point, no zeros in front.
    assert (
        missing("snapshot", "99.5:0.10000000 99.0:2.00000000", "100.5:3.50000000", "100535000000099510000000990200000000") is None
    )
    assert (
        missing("update", "99.5:0.00000000", "0.5:0.00100000", "05".lstrip("0") + "100000" + "1005350000000" + "990200000000")
        is None
    )
    lost = missing("update", "98.0:1.00000000", "", "something else")
    assert lost is not None
    assert lost.startswith("book BTC/USD: its checksum is not")


def test_a_checksum_that_was_never_right_says_nothing() -> None:
    feed = feed_of("kraken", Filter("book", ["BTC/USD"]))
    for kind in ("snapshot", "update"):
        assert feed.follow(feed.decode(kraken_book(kind, "99.5:1.0", "", 1))) is None


BINANCE = (Filter("depth", ["btcusdt"]), Filter("depthSnapshot", ["btcusdt"]))


def update(first: int, final: int, previous: int | None = None) -> Any:
    data = {"e": "depthUpdate", "s": "BTCUSDT", "U": first, "u": final, "b": [], "a": []}
    return {"stream": "btcusdt@depth@100ms", "data": data if previous is None else data | {"pu": previous}}


def snapshot_request(feed: Feed) -> HttpRequest:
    feed.subscribe()
    assert not feed.requests({"result": None, "id": 99})
    [request] = feed.requests({"result": None, "id": 1})
    assert not feed.requests({"result": None, "id": 1})
    return request


def body(number: int) -> bytes:
    return json.dumps({"lastUpdateId": number, "bids": [], "asks": []}).encode()


@pytest.mark.parametrize(
    ("name", "updates", "fits", "does_not"),
    [
        ("binance", [update(11, 20), update(21, 30)], [10, 11, 20, 30, 31], [8, 9]),
        ("binance-futures", [update(11, 20, 9), update(25, 30, 20)], [9, 11, 20, 25, 30, 31], [8, 10, 22]),
    ],
)
def test_a_snapshot_must_join_the_updates_before_it(name: str, updates: list[Any], fits: list[int], does_not: list[int]) -> None:
    for number in (*fits, *does_not):
        feed = feed_of(name, *BINANCE)
        request = snapshot_request(feed)
        assert all(feed.follow(message) is None for message in updates)
        raw = feed.answer(request, body(number))
        assert (raw is not None) is (number in fits), number
    assert raw is None
    # A newer one is fetched, and fits.
    raw = feed.answer(request, body(fits[-2]))
    assert raw is not None
    assert json.loads(raw) == {"stream": "btcusdt@depthSnapshot", "generated": True, "data": json.loads(body(fits[-2]))}


@pytest.mark.parametrize(
    ("name", "first", "joins"),
    [
        ("binance", update(11, 20), True),
        ("binance", update(12, 20), False),
        ("binance-futures", update(9, 20, 7), True),
        ("binance-futures", update(12, 20, 10), True),
        ("binance-futures", update(12, 20, 11), False),
    ],
)
def test_the_first_update_must_join_the_snapshot_before_it(name: str, first: Any, joins: bool) -> None:
    feed = feed_of(name, *BINANCE)
    assert feed.answer(snapshot_request(feed), body(10)) is not None
    missing = feed.follow(first)
    assert (missing is None) is joins
    assert joins or "does not join the snapshot 10" in str(missing)


def test_binance_updates_have_no_gaps_and_wait_only_so_long() -> None:
    feed = feed_of("binance", *BINANCE)
    assert feed.follow(update(1, 2)) is None
    assert feed.follow(update(4, 5)) == "btcusdt@depth@100ms: update 4 to 5 follows 2"
    futures = feed_of("binance-futures", *BINANCE)
    assert futures.follow(update(1, 2, 0)) is None
    assert futures.follow(update(7, 8, 2)) is None
    assert futures.follow(update(9, 10, 9)) is not None
    patient = feed_of("binance", *BINANCE)
    missing = [patient.follow(update(number, number)) for number in range(1, 2003)]
    assert missing[:2000] == [None] * 2000
    assert "no snapshot" in str(missing[2000])


def test_binance_polls_open_interest_and_spares_its_weight() -> None:
    feed = feed_of("binance-futures", Filter("openInterest", ["btcusdt"]), Filter("markPrice", ["btcusdt"]))
    [request] = feed.requests(None)
    assert request == HttpRequest("/fapi/v1/openInterest?symbol=BTCUSDT", "btcusdt@openInterest", 3.0)
    assert said(feed)[0]["params"] == ["btcusdt@markPrice@1s"]
    raw = feed.answer(request, b'{"openInterest":"5","symbol":"BTCUSDT","time":1}')
    assert json.loads(raw or b"")["generated"] is True
    assert feed.spare_s({"x-mbx-used-weight-1m": "100"}) == 0
    assert feed.spare_s({"x-mbx-used-weight-1m": "2399"}) > 0
    assert feed.spare_s({}) == 0
