"""Hypothesis strategies for every normalized message, as a mapper may emit it.

Invariant: a message drawn here holds what `messages` says it may: numbers from `js_number`, timestamps of three or six fraction
digits, UNSET or null only where a field is not text that every message has.
"""

from __future__ import annotations

from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tardis_machine.messages import (
    UNSET,
    BookChange,
    BookLevel,
    BookSnapshot,
    BookTicker,
    DerivativeTicker,
    Disconnect,
    ErrorMessage,
    Liquidation,
    Message,
    OptionSummary,
    Trade,
    TradeBar,
    js_number,
    to_timestamp,
)

__all__ = [
    "MESSAGES_BY_TYPE",
    "book_changes",
    "book_snapshots",
    "book_tickers",
    "derivative_tickers",
    "disconnects",
    "errors",
    "grouped_book_snapshots",
    "liquidations",
    "messages",
    "numbers",
    "option_summaries",
    "quotes",
    "timestamps",
    "trade_bars",
    "trades",
]

# How long an example takes says nothing on a machine that does other work too.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

_Drawn = TypeVar("_Drawn")

_YEAR_1970_US = 0
_YEAR_2100_US = 4_102_444_800_000_000
_LAST_JAVASCRIPT_DATE_US = 8_640_000_000_000_000_000


def _price_like(digits: int, places: int) -> float:
    return js_number(digits / 10**places)


def numbers() -> st.SearchStrategy[float]:
    """Prices and amounts most of the time; also all that a double can be, and integers that no double is."""
    return st.one_of(
        st.builds(_price_like, st.integers(0, 10**9), st.integers(0, 9)),
        st.floats(allow_nan=False, allow_infinity=False).map(js_number),
        st.integers(-(2**63), 2**64 - 1),
        st.sampled_from([0, 1e-7, 8.5e-6, 1e-6, 1e21, 1.5e21, 123456789012345680000.0, 5e-324, 1.7976931348623157e308]).map(
            lambda value: js_number(float(value))
        ),
    )


def _or_null(values: st.SearchStrategy[_Drawn]) -> st.SearchStrategy[Any]:
    return st.one_of(values, values, values, st.none())


def _or_absent(values: st.SearchStrategy[_Drawn]) -> st.SearchStrategy[Any]:
    return st.one_of(values, values, st.none(), st.just(UNSET))


def timestamps(*, far: bool = True) -> st.SearchStrategy[str]:
    """Of these days, and where `far` also as far from them as JavaScript's dates go."""
    instants = st.integers(_YEAR_1970_US, _YEAR_2100_US)
    if far:
        instants = st.one_of(instants, instants, instants, st.integers(-_LAST_JAVASCRIPT_DATE_US, _LAST_JAVASCRIPT_DATE_US))
    return st.builds(lambda us, milliseconds: to_timestamp(us, milliseconds=milliseconds), instants, st.booleans())


def _texts() -> st.SearchStrategy[str]:
    return st.one_of(
        st.sampled_from(["XBTUSD", "BTC-USDT-SWAP", "btcusdt", "ETH/USD:ETH", "比特币", "tBTCF0:USTF0", "", "x" * 200]),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    )


_symbols = _texts()
_exchanges = st.sampled_from(["bitmex", "binance-futures", "okex-swap"])
_ids = st.one_of(_or_absent(_texts()), st.integers(0, 2**63))
_sides = _or_null(st.sampled_from(["buy", "sell", "unknown"]))
_locals = timestamps(far=False)
_event_times = _or_null(timestamps())
_optional_numbers = _or_absent(numbers())
_required_numbers = _or_null(numbers())


def levels(min_size: int = 0, max_size: int = 6) -> st.SearchStrategy[list[BookLevel]]:
    """One side of a book: mostly whole levels, in some examples also empty ones and nulls."""
    whole = st.builds(BookLevel, numbers(), numbers())
    odd = st.one_of(whole, st.just(BookLevel(UNSET, UNSET)), st.builds(BookLevel, _optional_numbers, _optional_numbers))
    return st.one_of(st.lists(whole, min_size=min_size, max_size=max_size), st.lists(odd, min_size=min_size, max_size=max_size))


def trades() -> st.SearchStrategy[Trade]:
    return st.builds(Trade, _symbols, _exchanges, _ids, _required_numbers, _required_numbers, _sides, _event_times, _locals)


def liquidations() -> st.SearchStrategy[Liquidation]:
    return st.builds(Liquidation, _symbols, _exchanges, _ids, _required_numbers, _required_numbers, _sides, _event_times, _locals)


def book_changes() -> st.SearchStrategy[BookChange]:
    return st.builds(BookChange, _symbols, _exchanges, st.booleans(), levels(), levels(), _event_times, _locals)


def derivative_tickers() -> st.SearchStrategy[DerivativeTicker]:
    return st.builds(
        DerivativeTicker,
        _symbols,
        _exchanges,
        *[_optional_numbers] * 3,
        _or_absent(timestamps()),
        *[_optional_numbers] * 3,
        _event_times,
        _locals,
    )


def option_summaries() -> st.SearchStrategy[OptionSummary]:
    return st.builds(
        OptionSummary,
        _symbols,
        _exchanges,
        st.sampled_from(["put", "call"]),
        _required_numbers,
        _event_times,
        *[_optional_numbers] * 16,
        _or_absent(_texts()),
        _event_times,
        _locals,
    )


def book_tickers() -> st.SearchStrategy[BookTicker]:
    return st.builds(BookTicker, _symbols, _exchanges, *[_optional_numbers] * 4, _event_times, _locals)


def trade_bars() -> st.SearchStrategy[TradeBar]:
    return st.builds(
        TradeBar,
        _symbols,
        _exchanges,
        st.sampled_from(["trade_bar_10ms", "trade_bar_1m", "trade_bar_12.5vol", "trade_bar_7ticks"]),
        st.one_of(st.sampled_from([1, 10, 60_000, 12.5, 0.1, 2**32, 2**64 - 1]), st.none()),
        st.sampled_from(["time", "volume", "tick"]),
        *[_required_numbers] * 7,
        st.integers(0, 2**63),
        _required_numbers,
        _event_times,
        _event_times,
        _event_times,
        _locals,
    )


_intervals = st.sampled_from([0, 10, 100, 60_000, 2**32 - 1, 2**32])


def quotes() -> st.SearchStrategy[BookSnapshot]:
    return st.builds(
        BookSnapshot,
        _symbols,
        _exchanges,
        st.sampled_from(["quote", "quote_10ms", "quote_1m"]),
        st.just(1),
        _intervals,
        st.just(UNSET),
        levels(1, 1),
        levels(1, 1),
        _event_times,
        _locals,
    )


def _snapshots(names: list[str], grouping: st.SearchStrategy[Any]) -> st.SearchStrategy[BookSnapshot]:
    return st.builds(
        BookSnapshot,
        _symbols,
        _exchanges,
        st.sampled_from(names),
        st.integers(2, 2**32 - 1),  # of depth 1 under such a name it would be a quote
        _intervals,
        grouping,
        levels(),
        levels(),
        _event_times,
        _locals,
    )


def book_snapshots() -> st.SearchStrategy[BookSnapshot]:
    return _snapshots(["book_snapshot_2_100ms", "quote_of_my_own"], st.just(UNSET))


def grouped_book_snapshots() -> st.SearchStrategy[BookSnapshot]:
    return _snapshots(["book_snapshot_2_grouped10_100ms"], st.sampled_from([1, 10, 0.5, 1e-7, 2**32 - 1, 2**32, None]))


def disconnects() -> st.SearchStrategy[Disconnect]:
    return st.builds(
        Disconnect,
        _exchanges,
        _locals,
        _or_absent(st.lists(_texts(), max_size=3)),
        _or_absent(_texts()),
        _or_absent(st.integers(0, 2**32 - 1)),
    )


def errors() -> st.SearchStrategy[ErrorMessage]:
    return st.builds(
        ErrorMessage,
        _exchanges,
        _locals,
        _texts(),
        _or_absent(st.integers(0, 2**32 - 1)),
        _or_absent(st.sampled_from(["WS_CONNECT", "WS_SEND", "SOURCE_AUTH", "SOURCE_RATE_LIMIT"])),
    )


MESSAGES_BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "trade": trades(),
    "book_change": book_changes(),
    "book_snapshot": book_snapshots(),
    "quote": quotes(),
    "derivative_ticker": derivative_tickers(),
    "liquidation": liquidations(),
    "option_summary": option_summaries(),
    "book_ticker": book_tickers(),
    "grouped_book_snapshot": grouped_book_snapshots(),
    "trade_bar": trade_bars(),
    "error": errors(),
    "disconnect": disconnects(),
}
"""By payload case."""


def messages() -> st.SearchStrategy[Message]:
    """Any of them."""
    return st.one_of(*MESSAGES_BY_TYPE.values())
