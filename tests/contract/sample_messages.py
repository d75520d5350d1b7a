"""A message of every kind, as many as are asked for."""

from __future__ import annotations

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
    to_timestamp,
)

START_US = 1_700_000_000_000_000


def sample_messages(count: int, symbols: tuple[str, ...] = ("XBTUSD", "ETHUSD")) -> list[Message]:
    """Messages of all kinds in turn, of some symbols, no two alike."""
    messages: list[Message] = []
    number = 0
    while len(messages) < count:
        messages += _one_of_each(number, symbols[number % len(symbols)])
        number += 1
    return messages[:count]


def _one_of_each(number: int, symbol: str) -> list[Message]:
    at = to_timestamp(START_US + number * 1000)
    price, amount = 7000.25 + number, 1 + number % 7
    bids = [BookLevel(price - level, amount + level) for level in range(3)]
    asks = [BookLevel(price + level, 0 if level == 1 else amount) for level in range(2)]
    top = ([BookLevel(price, amount)], [BookLevel(price + 0.5, amount)])
    return [
        Trade(symbol, "bitmex", f"t{number}", price, amount, "buy" if number % 2 else "sell", at, at),
        BookChange(symbol, "bitmex", number % 5 == 0, bids, asks, at, at),
        DerivativeTicker(symbol, "bitmex", price, UNSET, 0.0001, UNSET, UNSET, price, UNSET, at, at),
        Liquidation(symbol, "bitmex", f"l{number}", price, amount, "sell", at, at),
        OptionSummary(
            f"{symbol}-9000-C",
            "deribit",
            "call",
            9000,
            at,
            *(UNSET, UNSET, UNSET, 0.5, amount, 61.5, UNSET, 12, 0.25),
            *(60, 0.5, 0.001, 3.5, -2.25, UNSET, price, "index"),
            at,
            at,
        ),
        BookTicker(symbol, "bitmex", amount, price + 0.5, price, amount, at, at),
        TradeBar(
            symbol,
            "bitmex",
            "trade_bar_1s",
            1000,
            "time",
            price,
            price,
            price,
            price,
            amount,
            amount,
            0,
            1,
            price,
            at,
            at,
            at,
            at,
        ),
        BookSnapshot(symbol, "bitmex", "book_snapshot_3_100ms", 3, 100, UNSET, bids, asks, at, at),
        BookSnapshot(symbol, "bitmex", "quote_1s", 1, 1000, UNSET, *top, at, at),
        BookSnapshot(symbol, "bitmex", "book_snapshot_3_grouped10_100ms", 3, 100, 10, bids, asks, at, at),
        Disconnect("bitmex", at),
        ErrorMessage("bitmex", at, f"lost, {number}"),
    ]
