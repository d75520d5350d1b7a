"""Datasets: normalized messages as rows of CSV, in the column layouts in which tardis.dev publishes them.

Times are microseconds since 1970, numbers plain decimals, what is not known is an empty cell; where an exchange gives no time, the time
of arrival stands in its place. A row of incremental_book_L2 is a level, of all others a message.

Invariant: a row has the columns of its dataset's header. https://docs.tardis.dev/downloadable-csv-files/data-types
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from io import StringIO
from itertools import islice, repeat
from math import isfinite
from typing import Any

from ..errors import OptionsError
from ..messages import (
    UNSET,
    BookChange,
    BookLevel,
    BookSnapshot,
    BookTicker,
    DerivativeTicker,
    JsNumber,
    Liquidation,
    Message,
    OptionSummary,
    Trade,
    parse_timestamp_us,
)

__all__ = ["DATASETS", "Dataset", "dataset_named", "to_csv_rows", "to_dataset_symbol"]

_FIRST = "exchange,symbol,timestamp,local_timestamp"
_TOP = f"{_FIRST},ask_amount,ask_price,bid_price,bid_amount"
_EXECUTION = f"{_FIRST},id,side,price,amount"


def _book_columns(depth: int) -> str:
    levels = (f"asks[{n}].price,asks[{n}].amount,bids[{n}].price,bids[{n}].amount" for n in range(depth))
    return ",".join([_FIRST, *levels])


@dataclass(frozen=True)
class Dataset:
    """A kind of file that is published for each day and symbol."""

    name: str
    data_type: str
    """What a replay is asked for."""
    normalized: str
    """What an exchange must have for it."""
    columns: str

    @property
    def header(self) -> bytes:
        """Its first line."""
        return self.columns.encode() + b"\n"


DATASETS: Mapping[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        Dataset("trades", "trade", "trade", _EXECUTION),
        Dataset("incremental_book_L2", "book_change", "book_change", f"{_FIRST},is_snapshot,side,price,amount"),
        Dataset("quotes", "quote", "book_change", _TOP),
        Dataset("book_snapshot_5", "book_snapshot_5_0ms", "book_change", _book_columns(5)),
        Dataset("book_snapshot_25", "book_snapshot_25_0ms", "book_change", _book_columns(25)),
        Dataset(
            "derivative_ticker",
            "derivative_ticker",
            "derivative_ticker",
            f"{_FIRST},funding_timestamp,funding_rate,predicted_funding_rate,open_interest,last_price,index_price,mark_price",
        ),
        Dataset("liquidations", "liquidation", "liquidation", _EXECUTION),
        Dataset(
            "options_chain",
            "option_summary",
            "option_summary",
            f"{_FIRST},type,strike_price,expiration,open_interest,last_price,bid_price,bid_amount,bid_iv,ask_price,ask_amount,ask_iv,"
            "mark_price,mark_iv,underlying_index,underlying_price,delta,gamma,vega,theta,rho",
        ),
        Dataset("book_ticker", "book_ticker", "book_ticker", _TOP),
    )
}


def dataset_named(name: str) -> Dataset:
    """The dataset of that name; OptionsError where there is none, as the name is a user's."""
    if name not in DATASETS:
        raise OptionsError(f"dataset: expected one of {', '.join(DATASETS)}, got {name[:80]!r}", "dataset")
    return DATASETS[name]


def to_dataset_symbol(symbol: str) -> str:
    """A symbol as names of datasets spell it."""
    return symbol.replace("/", "-").replace(":", "-").upper()


def to_csv_rows(messages: Sequence[Message]) -> bytes:
    """The rows of messages of one dataset; a quote is a snapshot of depth 1. Other messages, such as disconnects, have none."""
    lines: list[str] = []
    for message in messages:
        to_rows = _ROWS.get(type(message))
        if to_rows is not None:
            start = f"{_cell(message.exchange)},{_cell(message.symbol)},{_times(message)}"  # type: ignore[union-attr]
            lines += [f"{start},{row}\n" for row in to_rows(message)]
    return "".join(lines).encode()


def _times(message: Any) -> str:
    local_us = message.local_timestamp_us
    return f"{local_us if message.timestamp is None else message.timestamp_us},{local_us}"


def _cell(value: Any) -> str:
    """Text, quoted where it has to be."""
    if value is UNSET or value is None:
        return ""
    text = str(value)
    if any(letter in text for letter in ',"\r\n'):
        buffer = StringIO()
        csv.writer(buffer, lineterminator="").writerow([text])
        return buffer.getvalue()
    return text


def _number(value: Any) -> str:
    if isinstance(value, float):
        if not isfinite(value):
            return ""
        if isinstance(value, JsNumber):
            return value.to_text()
        text = repr(value)
        return format(Decimal(text), "f") if "e" in text else text.removesuffix(".0")
    return _cell(value)


def _numbers(*values: Any) -> str:
    return ",".join(map(_number, values))


def _instant(timestamp: Any) -> str:
    return "" if timestamp is UNSET or timestamp is None else str(parse_timestamp_us(timestamp))


def _execution(message: Trade | Liquidation) -> list[str]:
    return [f"{_cell(message.id)},{message.side},{_number(message.price)},{_number(message.amount)}"]


def _levels(message: BookChange) -> list[str]:
    start = "true" if message.is_snapshot else "false"
    sides: tuple[tuple[str, Sequence[BookLevel]], ...] = (("ask", message.asks), ("bid", message.bids))
    return [f"{start},{side},{_number(level.price)},{_number(level.amount)}" for side, levels in sides for level in levels]


_NO_LEVEL = BookLevel(UNSET, UNSET)


def _snapshot(message: BookSnapshot) -> list[str]:
    if message.depth == 1:
        ask, bid = next(_deep(message.asks)), next(_deep(message.bids))
        return [_numbers(ask.amount, ask.price, bid.price, bid.amount)]
    both = islice(zip(_deep(message.asks), _deep(message.bids), strict=True), message.depth)
    return [",".join([_numbers(ask.price, ask.amount, bid.price, bid.amount) for ask, bid in both])]


def _deep(levels: Sequence[BookLevel]) -> Iterator[BookLevel]:
    yield from levels
    yield from repeat(_NO_LEVEL)


def _derivative(message: DerivativeTicker) -> list[str]:
    rates = _numbers(message.funding_rate, message.predicted_funding_rate, message.open_interest)
    return [
        f"{_instant(message.funding_timestamp)},{rates},{_numbers(message.last_price, message.index_price, message.mark_price)}"
    ]


def _option(message: OptionSummary) -> list[str]:
    return [
        f"{message.option_type},{_number(message.strike_price)},{_instant(message.expiration_date)},"
        + _numbers(
            *(message.open_interest, message.last_price),
            *(message.best_bid_price, message.best_bid_amount, message.best_bid_iv),
            *(message.best_ask_price, message.best_ask_amount, message.best_ask_iv),
            *(message.mark_price, message.mark_iv, message.underlying_index, message.underlying_price),
            *(message.delta, message.gamma, message.vega, message.theta, message.rho),
        )
    ]


def _ticker(message: BookTicker) -> list[str]:
    return [_numbers(message.ask_amount, message.ask_price, message.bid_price, message.bid_amount)]


_ROWS: Mapping[type, Callable[[Any], list[str]]] = {
    Trade: _execution,
    Liquidation: _execution,
    BookChange: _levels,
    BookSnapshot: _snapshot,
    DerivativeTicker: _derivative,
    OptionSummary: _option,
    BookTicker: _ticker,
}
