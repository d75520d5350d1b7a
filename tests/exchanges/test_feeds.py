"""What all live feeds share, without I/O: the gate of books, books that are joined, and what every feed of the registry keeps to.

What an exchange says and is told stands in its transcript.
"""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from typing import Any

import pytest

from tardis_machine.errors import OptionsError
from tardis_machine.exchanges import EXCHANGES, BookStep, Credentials, Feed, Fetch, FrameKind
from tardis_machine.exchanges._feed import MAX_TEXT_BYTES, BookGate, in_batches, inflate, kind_of_error
from tardis_machine.exchanges._joined_book import MAX_WAITING, JoinRules, surrounds
from tardis_machine.exchanges._joined_book_gate import JoinedBookGate
from tardis_machine.filters import Filter
from tardis_machine.pipeline.normalizer import Normalizer

LIVE = {name: exchange.live for name, exchange in EXCHANGES.items() if exchange.live is not None}
DATA, EARLY, GAP = FrameKind.DATA, FrameKind.EARLY, FrameKind.GAP


def feed_of(name: str, *filters: Filter) -> Feed:
    return LIVE[name].feed(name, filters)


@pytest.mark.parametrize("name", LIVE)
def test_without_symbols_a_feed_serves_all_of_them_or_says_that_it_takes_some(name: str) -> None:
    filters = Normalizer(name, EXCHANGES[name].data_types, realtime=True).filters()
    for some in LIVE[name].feed.split(name, filters):
        feed = feed_of(name, *some)
        if feed.needs_symbols:
            with pytest.raises(OptionsError, match=f"symbols: expected at least one, as {name} does not stream all"):
                feed.subscribe(0)
        else:
            assert feed.subscribe(0)


@pytest.mark.parametrize("name", LIVE)
def test_a_feed_is_pure(name: str) -> None:
    """The same filters and time give the same frames."""
    filters = Normalizer(name, EXCHANGES[name].data_types, realtime=True).filters(["BTC-USD-A-1-C"])
    for some in LIVE[name].feed.split(name, filters):
        asked = [_shown(feed_of(name, *some)) for _ in range(2)]
        assert asked[0] == asked[1]


def _shown(feed: Feed) -> list[Any]:
    now_us = 1_780_272_000_000_000
    actions = [action[:2] if isinstance(action, Fetch) else action for action in feed.subscribe(now_us)]
    return [feed.access_request(now_us), feed.ping(now_us), *actions]


@pytest.mark.parametrize("name", LIVE)
def test_a_connection_is_kept_alive_every_five_seconds(name: str) -> None:
    assert LIVE[name].feed.ping_interval_s == 5


POLLS = {
    "binance-futures": {"openInterest": 5},
    "binance-delivery": {"openInterest": 5},
    "aster-futures": {"openInterest": 30},
    "kucoin-futures": {"contract/details": 6},
    "huobi-dm": {"open_interest": 4},
    "huobi-dm-swap": {"open_interest": 4},
    "huobi-dm-linear-swap": {"open_interest": 4},
}


@pytest.mark.parametrize("name", LIVE)
def test_what_is_polled(name: str) -> None:
    filters = Normalizer(name, EXCHANGES[name].data_types, realtime=True).filters(["BTC-USD-A-1-C"])
    actions = [action for some in LIVE[name].feed.split(name, filters) for action in feed_of(name, *some).subscribe(0)]
    polls = {action.name: action.every_s for action in actions if isinstance(action, Fetch) and action.every_s is not None}
    assert sorted(polls.values()) == sorted(POLLS.get(name, {}).values())
    assert all(any(channel in asked for asked in polls) for channel in POLLS.get(name, {}))


@pytest.mark.parametrize(
    "pack",
    [bytes, gzip.compress, lambda raw: zlib.compress(raw, wbits=-15)],
    ids=["plain", "gzip", "deflate"],
)
def test_binary_frames_hold_text(pack: Any) -> None:
    raw = b'{"table":"trade"}'
    assert feed_of("bitmex", Filter("trade")).to_text(pack(raw)) == raw


def test_many_symbols_are_asked_for_in_batches() -> None:
    assert [list(some) for some in in_batches("abcde", 2)] == [["a", "b"], ["c", "d"], ["e"]]
    assert list(in_batches([], 2)) == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Rate limit exceeded", "rate_limit"),
        ("Requests too frequent", "rate_limit"),
        ("418 banned", "rate_limit"),
        ("Signature not valid.", "auth"),
        ("Please log in", "auth"),
        ("Unknown table", "other"),
    ],
)
def test_what_an_error_complains_of(text: str, kind: str) -> None:
    assert kind_of_error(text) == kind


def test_credentials_are_never_shown() -> None:
    credentials = Credentials(SOME_API_KEY="sesame")
    assert credentials["SOME_API_KEY"] == "sesame"
    assert f"{credentials} {credentials!r} {[credentials]}".count("sesame") == 0
    assert "SOME_API_KEY" in repr(credentials)


def test_binance_slows_down_as_its_limit_is_used_up() -> None:
    feed = feed_of("binance-futures", Filter("openInterest", ["btcusdt"]))
    assert feed.pause_after_s({"x-mbx-used-weight-1m": "100"}) == 0
    assert feed.pause_after_s({"x-mbx-used-weight-1m": "2399"}) > 0
    assert feed.pause_after_s({}) == 0


def test_changes_pass_from_the_snapshot_on() -> None:
    gate = BookGate()
    assert gate.take(BookStep("a", False)) is EARLY
    assert gate.take(BookStep("a", True)) is DATA
    assert gate.take(BookStep("a", False)) is DATA
    assert gate.take(BookStep("b", False)) is EARLY


def test_a_missing_update_is_noticed() -> None:
    gate = BookGate()
    assert gate.take(BookStep("a", False, 4, 3)) is EARLY
    assert gate.take(BookStep("a", True, 5)) is DATA
    assert gate.take(BookStep("a", False, 7, 5)) is DATA
    assert gate.take(BookStep("a", False, 7, 7)) is DATA  # nothing changed
    assert gate.take(BookStep("a", False, 8)) is DATA  # does not say what it follows
    assert gate.take(BookStep("a", False, 12, 11)) is GAP
    assert gate.gap == "a: update 12 follows 11, but the last one was 8"
    assert gate.take(BookStep("a", True, 1)) is DATA  # begins anew
    assert gate.take(BookStep("a", False, 2, 1)) is DATA


def test_a_message_of_several_books() -> None:
    gate = BookGate()
    assert gate.take_all([BookStep("a", False), BookStep("b", False)]) is EARLY
    assert gate.take_all([BookStep("a", True, 1), BookStep("b", False)]) is DATA
    assert gate.take_all([BookStep("b", False), BookStep("a", False, 2, 1)]) is DATA
    assert gate.take_all([BookStep("a", False, 3, 2), BookStep("a", False, 9, 8)]) is GAP


# The two ways in which exchanges count: the update after the snapshot begins with the next number, or holds the snapshot's own.
NEXT = JoinRules(empty_numbers=(-1,))
WITHIN = JoinRules(overlaps=surrounds, holds_own_number=False)


def update(first: int, number: int, previous: int | None = None) -> BookStep:
    return BookStep("a", False, number, first - 1 if previous is None else previous, first)


@pytest.mark.parametrize(
    ("rules", "updates", "fits", "does_not"),
    [
        (NEXT, [update(11, 20), update(21, 30)], [10, 11, 20, 30, 31], [8, 9]),
        (WITHIN, [update(11, 20, 9), update(25, 30, 20)], [9, 11, 20, 25, 30, 31], [8, 10, 22]),
    ],
)
def test_a_snapshot_must_join_the_updates_before_it(
    rules: JoinRules, updates: list[BookStep], fits: list[int], does_not: list[int]
) -> None:
    for number in (*fits, *does_not):
        books = JoinedBookGate(rules)
        assert [books.take(step) for step in updates] == [DATA, DATA]
        assert books.fits("a", number) is (number in fits), number
    # What did not fit is followed by a newer one, which does.
    assert books.fits("a", fits[-2])


@pytest.mark.parametrize(
    ("rules", "first", "joins"),
    [
        (NEXT, update(11, 20), True),
        (NEXT, update(12, 20), False),
        (WITHIN, update(9, 20, 7), True),
        (WITHIN, update(12, 20, 10), True),
        (WITHIN, update(12, 20, 11), False),
    ],
)
def test_the_first_update_must_join_the_snapshot_before_it(rules: JoinRules, first: BookStep, joins: bool) -> None:
    books = JoinedBookGate(rules)
    assert books.fits("a", 10)
    assert books.take(update(5, 9)) is DATA  # which it holds
    books = JoinedBookGate(rules)
    assert books.fits("a", 10)
    assert (books.take(first) is DATA) is joins
    assert joins or books.gap == "a: update 12 to 20 does not join the snapshot 10"


def test_updates_have_no_gaps_before_and_after_the_snapshot() -> None:
    books = JoinedBookGate(NEXT)
    assert books.take(update(1, 2)) is DATA
    assert books.take(update(4, 5)) is GAP
    books = JoinedBookGate(NEXT)
    assert books.fits("a", 10)
    assert [books.take(step) for step in (update(11, 12), update(13, 14), update(16, 17))] == [DATA, DATA, GAP]
    assert books.gap == "a: update 17 follows 15, but the last one was 14"
    assert books.fits("a", 3)  # joined before: not for the gate to say


def test_updates_wait_only_so_long() -> None:
    books = JoinedBookGate(NEXT)
    kinds = [books.take(update(number, number)) for number in range(1, MAX_WAITING + 2)]
    assert kinds == [DATA] * MAX_WAITING + [GAP]
    assert books.gap == f"a: no snapshot in {MAX_WAITING} updates"


def test_a_new_book_is_empty_and_any_update_follows_it() -> None:
    books = JoinedBookGate(NEXT)
    assert books.take(update(7, 9)) is DATA
    assert books.fits("a", -1)


def test_an_exchange_without_a_rule_for_gaps_has_none_at_the_snapshot() -> None:
    books = JoinedBookGate(JoinRules(ignores_gaps=True))
    assert books.take(update(7, 9)) is DATA
    assert books.fits("a", 3)


def test_a_snapshot_of_a_cache_waits_for_an_update_for_a_while() -> None:
    books = JoinedBookGate(NEXT, patience=2)
    assert [books.fits("a", 10) for _ in range(3)] == [False, False, True]
    books = JoinedBookGate(NEXT, patience=2)
    assert not books.fits("a", 10)
    assert books.take(update(15, 16)) is DATA
    assert not books.fits("a", 10)
    assert books.fits("a", 15)
    assert not JoinedBookGate(NEXT).fits("a", None)  # what is no book


def test_a_snapshot_that_came_in_a_frame() -> None:
    books = JoinedBookGate(NEXT)
    assert books.take(update(11, 12)) is DATA
    assert books.take(BookStep("a", True, 8)) is EARLY
    assert books.take(BookStep("a", True, 10)) is DATA
    assert books.take(update(13, 13)) is DATA


@pytest.mark.parametrize("wbits", [31, -15])
def test_a_packed_frame_that_grows_without_end_is_given_up(wbits: int) -> None:
    packed = zlib.compress(bytes(100_000_000), wbits=wbits)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="is cut, or becomes more than 1000000 bytes"):
            inflate(packed, wbits, 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    with pytest.raises(ValueError, match="is cut"):
        inflate(packed[:-20], wbits)
    assert len(inflate(packed, wbits)) == 100_000_000


def test_what_a_feed_unpacks_is_bounded() -> None:
    packed = gzip.compress(bytes(MAX_TEXT_BYTES + 1), 1)
    with pytest.raises(ValueError, match="becomes more than"):
        feed_of("bitmex", Filter("trade", ["XBTUSD"])).to_text(packed)
