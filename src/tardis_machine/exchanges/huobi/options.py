"""Summaries of Huobi's options, which were traded from 2021-02 to 2021-06. All that they are made of was polled:
`{"ch": "market.BTC-USDT-210521-P-42000.option_market_index", "generated": true, "data": {…}, "ts": …}`.

Invariant: a summary is emitted for the prices and greeks of an option alone; the index and open interest are added as last told.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from ...messages import UNSET, OptionSummary, Timestamp
from .._mapper import Json, Mapper
from .._parsing import nonzero_number, timestamp_from_ms, timestamp_from_text, to_number, verbatim
from .._remembered import Remembered
from .._spelling import AS_TYPED, Spelling

__all__ = ["HuobiOptionSummaryMapper"]


class HuobiOption(NamedTuple):
    """What the name of an option says."""

    underlying: str
    expiration: Timestamp
    strike: float


def _index_of(symbol: str) -> str:
    """`BTC-USDT-210521-P-42000` follows BTC-USDT. Without a second part the reference asks for SYM-undefined."""
    coin, dash, rest = symbol.partition("-")
    return f"{coin}-{rest.partition('-')[0] if dash else 'undefined'}"


@lru_cache(10_000)
def _option(symbol: str) -> HuobiOption:
    parts = symbol.split("-")
    day = parts[2]
    expiration = timestamp_from_text(f"20{day[:2]}-{day[2:4]}-{day[4:6]}T08:00:00.000Z")
    return HuobiOption(_index_of(symbol), expiration, to_number(parts[4] if len(parts) > 4 else UNSET))


class HuobiOptionSummaryMapper(Mapper):
    channels = ("open_interest", "option_index", "option_market_index")
    spelling = AS_TYPED
    spellings: ClassVar = {"option_index": Spelling(_index_of)}

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        self._index_prices: Remembered[str, Any] = Remembered()
        self._open_interests: Remembered[str, Any] = Remembered()

    def accepts(self, message: Json) -> bool:
        return message.get("ch", "").endswith((".open_interest", ".option_index", ".option_market_index"))

    def map(self, message: Json, local_timestamp: str) -> Sequence[OptionSummary]:
        channel, data = message["ch"], message["data"]
        if channel.endswith(".option_index"):
            self._index_prices[data.get("symbol", UNSET)] = verbatim(data.get("index_price", UNSET))
            return ()
        if channel.endswith(".open_interest"):
            for row in data:
                self._open_interests[row.get("contract_code", UNSET)] = verbatim(row.get("volume", UNSET))
            return ()
        symbol = data["contract_code"]
        option = _option(symbol)
        mark_price = data.get("mark_price", UNSET)
        return (
            OptionSummary(
                symbol=symbol,
                exchange=self.exchange,
                option_type="put" if data.get("option_right_type") == "P" else "call",
                strike_price=option.strike,
                expiration_date=option.expiration,
                best_bid_price=nonzero_number(data.get("bid_one")),
                best_bid_amount=UNSET,
                best_bid_iv=nonzero_number(data.get("iv_bid_one")),
                best_ask_price=nonzero_number(data.get("ask_one")),
                best_ask_amount=UNSET,
                best_ask_iv=nonzero_number(data.get("iv_ask_one")),
                last_price=nonzero_number(data.get("last_price")),
                open_interest=self._open_interests.get(symbol, UNSET),
                mark_price=nonzero_number(mark_price) if to_number(mark_price) > 0 else UNSET,
                mark_iv=nonzero_number(data.get("iv_mark_price")),
                delta=nonzero_number(data.get("delta")),
                gamma=nonzero_number(data.get("gamma")),
                vega=nonzero_number(data.get("vega")),
                theta=nonzero_number(data.get("theta")),
                rho=UNSET,
                underlying_price=self._index_prices.get(option.underlying, UNSET),
                underlying_index=option.underlying,
                timestamp=timestamp_from_ms(message.get("ts", UNSET)),
                local_timestamp=local_timestamp,
            ),
        )
