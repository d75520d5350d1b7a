"""What history told is passed over, and nothing else; what is heard meanwhile waits."""

from __future__ import annotations

import asyncio
from typing import Any

from tardis_machine.messages import (
    UNSET,
    BookChange,
    BookLevel,
    DerivativeTicker,
    Disconnect,
    ErrorMessage,
    Message,
    Trade,
    parse_timestamp_us,
)
from tardis_machine.pipeline.live_buffer import MARGIN_US, QUIET_US, LiveBuffer
from tardis_machine.pipeline.seam import Seam

LOCAL = "2020-02-01T00:00:05.000000Z"
SINCE_US = parse_timestamp_us("2020-02-01T00:00:00.000Z")


def at(second: float) -> str:
    return f"2020-02-01T00:00:{second:06.3f}Z"


def trade(id_: str | None, second: float = 1, price: float = 5, local: str = LOCAL) -> Trade:
    return Trade("XBTUSD", "bitmex", id_, price, 1, "buy", at(second), local)  # type: ignore[arg-type]


def book(second: float, *bids: tuple[float, float], snapshot: bool = False, local: str = LOCAL) -> BookChange:
    return BookChange("XBTUSD", "bitmex", snapshot, [BookLevel(*level) for level in bids], [], at(second), local)


def test_an_event_is_known_by_its_id_and_counted_where_it_has_none() -> None:
    seam = Seam(SINCE_US)
    seam.tell([trade("1"), trade("2"), trade(None), trade(None)])
    heard = [trade("2", local="later"), trade("3"), trade(None), trade(None), trade(None), trade(None, price=6)]
    assert seam.sift(heard) == [trade("3"), trade(None), trade(None, price=6)]


def test_what_an_exchange_repeats_to_begin_with_has_long_been_told() -> None:
    seam = Seam(SINCE_US)
    old = Trade("XBTUSD", "bitmex", "0", 5, 1, "buy", "2020-01-31T23:59:59.999Z", LOCAL)
    assert seam.sift([old, trade("1", 0)]) == [trade("1", 0)]


def test_a_book_goes_on_from_what_live_data_says_it_is() -> None:
    seam = Seam(SINCE_US)
    seam.tell([book(1, (9, 1), snapshot=True), book(2, (8, 3)), book(2, (7, 3))])
    assert seam.sift([book(1.5, (9, 2), (8, 2), snapshot=True), book(2, (8, 3))]) == []
    # The same instant, and nothing that history said.
    after = book(2, (6, 1))
    assert seam.sift([after]) == [book(2, (9, 2), (8, 3), snapshot=True), after]
    assert seam.sift([book(2, (7, 3))]) == [book(2, (7, 3))]


def test_a_whole_book_that_is_new_needs_none_before_it() -> None:
    seam = Seam(SINCE_US)
    seam.tell([book(1, (9, 1), snapshot=True)])
    whole = book(3, (4, 4), snapshot=True)
    assert seam.sift([book(1, (9, 1), snapshot=True), whole]) == [whole]
    assert Seam(SINCE_US).sift([whole, book(3, (4, 0))]) == [whole, book(3, (4, 0))]


def test_tickers_go_by_the_exchanges_time() -> None:
    def ticker(second: float, price: float, symbol: str = "XBTUSD") -> DerivativeTicker:
        return DerivativeTicker(symbol, "bitmex", price, UNSET, UNSET, UNSET, UNSET, UNSET, UNSET, at(second), LOCAL)

    seam = Seam(SINCE_US)
    seam.tell([ticker(1, 5), ticker(2, 6)])
    heard = [ticker(1, 7), ticker(2, 6), ticker(2, 8), ticker(3, 6), ticker(1, 1, "ETHUSD")]
    assert seam.sift(heard) == [ticker(2, 8), ticker(3, 6), ticker(1, 1, "ETHUSD")]


def test_what_is_said_of_connections_passes() -> None:
    said: list[Message] = [Disconnect("bitmex", LOCAL), ErrorMessage("bitmex", LOCAL, "no")]
    assert Seam(SINCE_US).sift(said) == said


class Ticking:
    """A clock to set."""

    def __init__(self) -> None:
        self.us = 1_000_000_000

    def __call__(self) -> int:
        return self.us


def buffer(connections: int = 2, **options: Any) -> tuple[LiveBuffer, Ticking]:
    clock = Ticking()
    made = LiveBuffer(asyncio.Event(), clock, **options)
    made.listen(connections)
    return made, clock


def taken(waiting: LiveBuffer) -> list[str]:
    return [message.id for batch in iter(waiting.take, []) for message in batch if isinstance(message, Trade)]


async def test_it_waits_in_its_order_also_when_it_is_much() -> None:
    waiting, _ = buffer()
    for number in range(300):
        waiting.deliver(number % 2, [trade(f"{number}-{place}") for place in range(200)])
    waiting.open()
    assert taken(waiting) == [f"{number}-{place}" for number in range(300) for place in range(200)]
    waiting.deliver(0, [trade("last")])
    assert taken(waiting) == ["last"]
    waiting.close()


async def test_a_lost_connection_leaves_nothing_until_it_is_open() -> None:
    waiting, _ = buffer()
    waiting.deliver(0, [trade("a")])
    waiting.deliver(1, [trade("b")])
    waiting.deliver(0, [trade("c"), Disconnect("bitmex", LOCAL)])
    waiting.deliver(0, [trade("d"), ErrorMessage("bitmex", LOCAL, "no")])
    waiting.open()
    assert taken(waiting) == ["b", "d"]
    waiting.deliver(0, [trade("e")])
    waiting.deliver(0, [Disconnect("bitmex", LOCAL)])
    assert [type(message) for batch in iter(waiting.take, []) for message in batch] == [Trade, Disconnect]
    waiting.close()


async def test_it_is_covered_when_each_connection_has_been_heard_for_a_while() -> None:
    waiting, clock = buffer()
    start = clock.us
    assert waiting.covered_us() == start + QUIET_US + MARGIN_US
    clock.us += 5
    waiting.deliver(0, [trade("a")])
    waiting.deliver(1, [trade("b")])
    assert waiting.covered_us() == start + 5 + MARGIN_US
    clock.us += 5
    waiting.deliver(1, [Disconnect("bitmex", LOCAL)])
    assert waiting.covered_us() == start + 10 + QUIET_US + MARGIN_US
    waiting.close()


async def test_listening_pauses_while_too_much_waits() -> None:
    waiting, _ = buffer(max_bytes=1_000)
    while not waiting.is_full:
        waiting.deliver(0, [trade("a")])
    pausing = asyncio.create_task(waiting.ready())
    await asyncio.sleep(0)
    assert not pausing.done()
    taken(waiting)
    await asyncio.wait_for(pausing, 5)
    waiting.close()
