"""Computed types written the plain way: everything is rebuilt and compared after each message, in milliseconds and doubles.

Invariant: no cleverness; this is what the fast ones are measured against.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from tardis_machine.computed import BookSnapshots, Computable, TradeBars
from tardis_machine.messages import (
    UNSET,
    BookChange,
    BookLevel,
    BookSnapshot,
    Disconnect,
    Message,
    Trade,
    TradeBar,
    js_number,
    parse_timestamp_us,
    to_timestamp,
)


def milliseconds(timestamp: str | None) -> float:
    return math.nan if timestamp is None else parse_timestamp_us(timestamp) // 1000


def bucket(instant_ms: float, interval: float) -> float:
    index = math.inf if interval == 0 else instant_ms / interval
    return math.floor(index) if math.isfinite(index) else index


class PlainBook:
    def __init__(self, remove_crossed: bool) -> None:
        self.remove_crossed = remove_crossed
        self.started = False
        self.sides: dict[str, dict[float, BookLevel]] = {"bids": {}, "asks": {}}

    def bids(self) -> list[BookLevel]:
        return [level for _, level in sorted(self.sides["bids"].items(), reverse=True)]

    def asks(self) -> list[BookLevel]:
        return [level for _, level in sorted(self.sides["asks"].items())]

    def update(self, change: BookChange) -> None:
        if change.is_snapshot:
            self.sides = {"bids": {}, "asks": {}}
            self.started = True
        if not self.started:
            return
        for name, levels in (("asks", change.asks), ("bids", change.bids)):
            for level in levels:
                if level.amount == 0:
                    self.sides[name].pop(level.price, None)  # type: ignore[arg-type]
                else:
                    self.sides[name][level.price] = level  # type: ignore[index]
        if not self.remove_crossed or not self.crossed():
            return
        ask_is_new = any(level.price == self.asks()[0].price for level in change.asks)
        while self.crossed():
            if ask_is_new:
                del self.sides["bids"][self.bids()[0].price]  # type: ignore[arg-type]
            else:
                del self.sides["asks"][self.asks()[0].price]  # type: ignore[arg-type]

    def crossed(self) -> bool:
        bids, asks = self.bids(), self.asks()
        return bool(bids and asks and bids[0].price >= asks[0].price)  # type: ignore[operator]


class PlainSnapshots:
    def __init__(self, asked: BookSnapshots) -> None:
        self.asked = asked
        self.book = PlainBook(asked.remove_crossed)
        self.shown = self.view()
        self.changed = False
        self.initialized = False
        self.last: str | None = "1969-12-31T23:59:59.999Z"

    def compute(self, change: BookChange) -> list[Message]:
        out: list[Message] = []
        if self.is_due(change.timestamp):
            out.append(self.snapshot(change))
        self.book.update(change)
        view = self.view()
        if view != self.shown:
            self.changed = True
        self.shown = view
        self.last = change.timestamp
        if self.is_due(change.timestamp):
            out.append(self.snapshot(change))
            self.initialized = True
        return out

    def is_due(self, timestamp: str | None) -> bool:
        interval = self.asked.interval
        if not self.changed:
            return False
        if interval == 0 or not self.initialized:
            return True
        before = bucket(milliseconds(self.last), interval)
        if bucket(milliseconds(timestamp), interval) > before:
            self.last = to_timestamp(int((before + 1) * interval) * 1000, milliseconds=True)
            return True
        return False

    def snapshot(self, change: BookChange) -> Message:
        self.changed = False
        asked = self.asked
        grouping: Any = UNSET if asked.grouping is None else asked.grouping
        return BookSnapshot(
            change.symbol,
            change.exchange,
            asked.name,
            asked.depth,
            asked.interval,
            grouping,
            *self.shown,
            self.last,
            change.local_timestamp,
        )

    def view(self) -> list[list[BookLevel]]:
        bids, asks = self.book.bids(), self.book.asks()
        if self.asked.grouping is not None:
            bids = grouped(bids, self.asked.grouping, upwards=False)
            asks = grouped(asks, self.asked.grouping, upwards=True)
        empty = [BookLevel(UNSET, UNSET)] * self.asked.depth
        return [(side + empty)[: self.asked.depth] for side in (bids, asks)]


def grouped(levels: list[BookLevel], grouping: float, upwards: bool) -> list[BookLevel]:
    places = 0
    while abs(math.floor(grouping * 10.0**places + 0.5) - grouping * 10.0**places) > 1e-10:
        places += 1
    scale = 10.0**places
    steps: list[tuple[float, list[float]]] = []
    for level in levels:
        scaled = level.price * scale  # type: ignore[operator]
        rest = math.fmod(scaled, grouping * scale) / scale
        step = (scaled - rest * scale + (grouping * scale if upwards and rest > 0 else 0)) / scale
        if not steps or steps[-1][0] != step:
            steps.append((step, []))
        steps[-1][1].append(level.amount)  # type: ignore[arg-type]
    out = []
    for step, amounts in steps:
        total = 0.0
        for amount in amounts:
            total += amount
        out.append(BookLevel(js_number(step), js_number(total)))
    return out


class PlainBars:
    def __init__(self, asked: TradeBars) -> None:
        self.asked = asked
        self.trades: list[Trade] = []

    def compute(self, trade: Trade) -> list[Message]:
        out: list[Message] = []
        asked = self.asked
        if asked.kind == "time" and self.trades:
            opened = bucket(milliseconds(self.trades[0].timestamp), asked.interval)
            if bucket(milliseconds(trade.timestamp), asked.interval) > opened:
                out.append(self.bar(trade, to_timestamp(int((opened + 1) * asked.interval) * 1000, milliseconds=True)))
        self.trades.append(trade)
        filled = {"time": -math.inf, "tick": len(self.trades), "volume": summed(self.trades)}[asked.kind]
        if filled >= asked.interval:
            out.append(self.bar(trade))
        return out

    def bar(self, cause: Trade, end: str | None = None) -> Message:
        trades, self.trades = self.trades, []
        close = None
        vwap = volume = 0.0
        for trade in trades:
            newest = milliseconds("1969-12-31T23:59:59.999Z" if close is None else close.timestamp)
            if milliseconds(trade.timestamp) >= newest:
                close = trade
            total = volume + trade.amount
            vwap = (vwap * volume + float(trade.price) * trade.amount) / total if total else math.nan
            volume = total
        closed = "1969-12-31T23:59:59.999Z" if close is None else close.timestamp
        return TradeBar(
            cause.symbol,
            cause.exchange,
            self.asked.name,
            self.asked.interval,
            self.asked.kind,
            trades[0].price,
            max(trade.price for trade in trades),
            min(trade.price for trade in trades),
            0 if close is None else close.price,
            js_number(volume),
            js_number(summed(trade for trade in trades if trade.side == "buy")),
            js_number(summed(trade for trade in trades if trade.side == "sell")),
            len(trades),
            js_number(vwap),
            trades[0].timestamp,
            closed,
            closed if end is None else end,
            cause.local_timestamp,
        )


def summed(trades: Iterable[Trade]) -> float:
    total = 0.0
    for trade in trades:
        total += trade.amount
    return total


def compute_plainly(messages: Iterable[Message], computables: Iterable[Computable]) -> list[Message]:
    """What `compute` is to return."""
    running: dict[Any, list[PlainSnapshots | PlainBars]] = {}
    out: list[Message] = []
    for message in messages:
        out.append(message)
        if isinstance(message, Disconnect):
            running = {key: plain for key, plain in running.items() if key[0] != message.exchange}
        elif isinstance(message, BookChange | Trade):
            plain = running.setdefault(
                (message.exchange, message.symbol),
                [PlainSnapshots(item) if isinstance(item, BookSnapshots) else PlainBars(item) for item in computables],  # type: ignore[arg-type]
            )
            for item in plain:
                if isinstance(item, PlainSnapshots) == isinstance(message, BookChange):
                    out += item.compute(message)  # type: ignore[arg-type]
    return out
