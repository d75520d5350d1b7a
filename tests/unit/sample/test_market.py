from __future__ import annotations

import pytest

from tardis_machine.sample.instrument import Instrument, to_decimal, to_number, to_rounded
from tardis_machine.sample.market import MINUTE_US, MOSTLY_UPDATES, BookEvent, SampleMarket, TradeEvent
from tardis_machine.sample.venues import VENUES

MIDNIGHT = 1_704_067_200 // 60  # 2024-01-01
INSTRUMENTS = [instrument for venue in VENUES.values() for instrument in venue.instruments(MIDNIGHT)]
PERPETUAL = VENUES["bitmex"].instruments(MIDNIGHT)[0]


@pytest.fixture(scope="module")
def market() -> SampleMarket:
    return SampleMarket(3)


@pytest.mark.parametrize("instrument", INSTRUMENTS, ids=lambda each: f"{each.exchange} {each.symbol}")
def test_minutes_join_without_a_seam_and_never_cross(market: SampleMarket, instrument: Instrument) -> None:
    for index in (MIDNIGHT - 1, MIDNIGHT, MIDNIGHT + 1):
        minute = market.minute(instrument, index)
        book = minute.opening.copy()
        for event in minute.book_events():
            for change in event.changes:
                assert (book.bids if change.bid else book.asks).get(change.slot, 0) == change.was
                assert change.slot > 0
            book.apply(event.changes)
            assert book.best() == (event.bid, event.bid_lots, event.ask, event.ask_lots)
            assert not event.bid or not event.ask or event.bid < event.ask
        assert book == market.opening_book(instrument, index + 1)


@pytest.mark.parametrize("instrument", INSTRUMENTS, ids=lambda each: f"{each.exchange} {each.symbol}")
def test_events_are_in_order_and_in_their_minute(market: SampleMarket, instrument: Instrument) -> None:
    earlier = None
    for index in (MIDNIGHT, MIDNIGHT + 1):
        for event in market.minute(instrument, index).events:
            assert index * MINUTE_US * 10 < event.arrival < (index + 1) * MINUTE_US * 10
            assert 0 < event.arrival - event.exchange_us * 10 < 1_000_000
            if earlier is not None:
                assert event.arrival >= earlier.arrival + 40
                assert event.exchange_us >= earlier.exchange_us
            earlier = event


def test_trades_are_at_the_best_price_and_numbered_without_a_gap(market: SampleMarket) -> None:
    identity = market.trades_before(PERPETUAL, MIDNIGHT)
    for index in range(MIDNIGHT, MIDNIGHT + 3):
        minute = market.minute(PERPETUAL, index)
        bid, _, ask, _ = minute.opening.best()
        for event in minute.events:
            if isinstance(event, TradeEvent):
                assert event.first_id == identity
                assert event.fills
                assert event.fills[0][0] == (ask if event.buy else bid)
                assert all(lots > 0 for _, lots in event.fills)
                identity += len(event.fills)
            else:
                bid, ask = event.bid, event.ask
        assert identity == market.trades_before(PERPETUAL, index + 1)


def test_rates_are_those_asked_for() -> None:
    for activity in (0.25, 1.0):
        market = SampleMarket(5, activity)
        events = [event for index in range(10) for event in market.minute(PERPETUAL, MIDNIGHT + index).events]
        trades = sum(len(event.fills) for event in events if isinstance(event, TradeEvent))
        assert trades / 600 == pytest.approx(20.0 * activity, rel=0.1)
        assert sum(isinstance(event, BookEvent) for event in events) / 600 == pytest.approx(80.0 * activity, rel=0.15)


@pytest.mark.parametrize("exchange", VENUES)
def test_levels_come_and_go_on_every_venue(market: SampleMarket, exchange: str) -> None:
    """About a third of the changes of a book are levels that are new or gone, as many of the one as of the other."""
    instrument = VENUES[exchange].instruments(MIDNIGHT)[0]
    changes = [
        change
        for index in range(MIDNIGHT, MIDNIGHT + 10)
        for event in market.minute(instrument, index).book_events()
        for change in event.changes
    ]
    gone = sum(not change.lots for change in changes) / len(changes)
    new = sum(not change.was for change in changes) / len(changes)
    assert 0.25 < gone + new < 0.45
    assert gone == pytest.approx(new, abs=0.01)


def test_a_taker_meets_several_makers_at_a_level(market: SampleMarket) -> None:
    takers = [event.fills for event in market.minute(PERPETUAL, MIDNIGHT).events if isinstance(event, TradeEvent)]
    assert sum(len(fills) for fills in takers) / len(takers) == pytest.approx(3.0, abs=0.5)
    assert any(len({slot for slot, _ in fills}) < len(fills) for fills in takers)
    # Each fill may be a message of its own, a clock tick after the one before, and the next event is 40 ticks away.
    assert max(len(fills) for fills in takers) <= 40
    alone = SampleMarket(3, message_mix=MOSTLY_UPDATES).minute(PERPETUAL, MIDNIGHT).events
    assert all(len({slot for slot, _ in event.fills}) == len(event.fills) for event in alone if isinstance(event, TradeEvent))


def test_a_market_that_sleeps_still_changes_once_a_minute() -> None:
    market = SampleMarket(1, activity=0.0)
    for index in range(MIDNIGHT, MIDNIGHT + 5):
        assert list(market.minute(PERPETUAL, index).book_events())


def test_a_minute_does_not_depend_on_those_made_before_it() -> None:
    walked = SampleMarket(9)
    for index in range(MIDNIGHT, MIDNIGHT + 4):
        minute = walked.minute(PERPETUAL, index)
    assert minute == SampleMarket(9).minute(PERPETUAL, MIDNIGHT + 3)
    assert minute != SampleMarket(10).minute(PERPETUAL, MIDNIGHT + 3)


def test_the_book_at_an_instant_is_that_after_all_that_arrived(market: SampleMarket) -> None:
    minute = market.minute(PERPETUAL, MIDNIGHT)
    event = list(minute.book_events())[1_000]
    before, after = minute.book_at(event.arrival - 1), minute.book_at(event.arrival)
    assert before != after
    before.apply(event.changes)
    assert before == after
    bids, asks = market.book_at(PERPETUAL, MIDNIGHT * MINUTE_US + 30_000_000).levels(PERPETUAL)
    assert list(bids) == sorted(bids, reverse=True)
    assert list(asks) == sorted(asks)
    assert max(bids) < min(asks)


def test_no_book_ever_opens_without_a_side(market: SampleMarket) -> None:
    for index in range(MIDNIGHT - 1_000_000, MIDNIGHT + 1_000_000, 9_973):
        for instrument in VENUES["deribit"].instruments(index):
            book = market.opening_book(instrument, index)
            assert len(book.bids) > 0
            assert len(book.asks) > 1
            assert max(book.bids) < min(book.asks)


def test_prices_of_one_asset_agree_across_venues(market: SampleMarket) -> None:
    second = MIDNIGHT * 60 + 1_234
    for instrument in INSTRUMENTS:
        if instrument.kind in ("spot", "perpetual") and instrument.asset == "BTC":
            assert market.fair_price(instrument, second) == pytest.approx(market.index("BTC", second), rel=0.002)
            bid, _, ask, _ = market.book_at(instrument, second * 1_000_000).best()
            assert instrument.price(bid) == pytest.approx(instrument.price(ask), rel=0.001)
            assert instrument.price(bid) == pytest.approx(market.fair_price(instrument, second), rel=0.002)


def test_references_move_and_funding_is_paid_every_eight_hours(market: SampleMarket) -> None:
    hours = [market.reference(PERPETUAL, MIDNIGHT * 60 + hour * 3_600) for hour in range(24)]
    assert len({each.funding_rate for each in hours[:8]}) == 1
    assert len({market.reference(PERPETUAL, MIDNIGHT * 60 + period * 8 * 3_600).funding_rate for period in range(21)}) > 15
    assert [each.funding_s - MIDNIGHT * 60 for each in hours[::8]] == [8 * 3_600, 16 * 3_600, 24 * 3_600]
    assert len({each.open_interest for each in hours}) == 24
    assert len({each.fair for each in hours}) == 24
    assert all(abs(each.fair / each.index - 1) < 0.002 for each in hours)
    assert hours[7].predicted_funding_rate == pytest.approx(hours[8].funding_rate, abs=0.0001)


def test_options_have_greeks_that_fit_their_strikes(market: SampleMarket) -> None:
    options = [each for each in VENUES["deribit"].instruments(MIDNIGHT) if each.kind == "option"]
    calls = [market.reference(each, MIDNIGHT * 60) for each in options if each.terms is not None and each.terms.call]
    deltas = [each.greeks.delta for each in calls if each.greeks is not None]
    assert len(deltas) == 5
    assert deltas == sorted(deltas, reverse=True)
    assert all(0.2 < each.volatility < 1.5 for each in calls)


@pytest.mark.parametrize(
    ("units", "decimals", "whole", "short"),
    [
        (42, 1, "4.2", "4.2"),
        (420, 2, "4.20", "4.2"),
        (4_200, 2, "42.00", "42"),
        (7, 0, "7", "7"),
        (-5, 3, "-0.005", "-0.005"),
        (0, 2, "0.00", "0"),
    ],
)
def test_integers_read_as_decimals(units: int, decimals: int, whole: str, short: str) -> None:
    assert to_decimal(units, decimals) == whole
    assert to_number(units, decimals) == short


@pytest.mark.parametrize(
    ("value", "decimals", "text"), [(0.000034, 6, "0.000034"), (-0.0000001, 6, "0"), (1_200.0, 2, "1200"), (10.0, 0, "10")]
)
def test_numbers_read_as_decimals(value: float, decimals: int, text: str) -> None:
    assert to_rounded(value, decimals) == text
