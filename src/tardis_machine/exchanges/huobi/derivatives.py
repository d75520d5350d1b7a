"""What Huobi's futures and swaps have beside trades and books: tickers and liquidations.

Messages of two kinds: those of markets, `{"ch": "market.BTC_CW.basis.1min.close", "ts": …, "tick": {…}}`, and notifications,
`{"op": "notify", "topic": "public.BTC-USD.funding_rate", "ts": …, "data": […]}`.

Invariant: a future goes by its alias (`BTC_CW`), though notifications name it by the day on which it expires (`BTC200925`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...messages import UNSET, DerivativeTicker, Liquidation
from .._mapper import Json, Mapper
from .._parsing import text_of, timestamp_from_ms, to_number, verbatim
from .._remembered import Remembered
from .._spelling import Spelling
from .._ticker import TickerMapper
from .envelope import to_side

__all__ = [
    "ALIASES",
    "HuobiDerivativeTickerMapper",
    "HuobiFuturesLiquidationMapper",
    "HuobiLiquidationMapper",
    "HuobiSwapTickerMapper",
]

ALIASES: Mapping[str, str] = {"this_week": "CW", "next_week": "NW", "quarter": "CQ", "next_quarter": "NQ"}
"""How a future's alias ends, by its type."""


class HuobiDerivativeTickerMapper(TickerMapper):
    """Last price and index by `basis`, open interest as it was polled, and funding by notifications."""

    channels: tuple[str, ...] = ("basis", "open_interest")

    def accepts(self, message: Json) -> bool:
        if "ch" in message:
            channel = message["ch"]
            return ".basis." in channel or channel.endswith(".open_interest")
        return message.get("op") == "notify" and message.get("topic", "").endswith(".funding_rate")

    def map(self, message: Json, local_timestamp: str) -> Iterator[DerivativeTicker]:
        if "op" in message:
            funding = message["data"][0]
            ticker = self.tickers[funding.get("contract_code", UNSET)]
            ticker.update_funding_rate(to_number(funding.get("funding_rate", UNSET)))
            ticker.update_funding_timestamp(timestamp_from_ms(to_number(funding.get("settlement_time", UNSET))))
            ticker.update_predicted_funding_rate(to_number(funding.get("estimated_rate", UNSET)))
        else:
            ticker = self.tickers[message["ch"].split(".")[1]]
            if "tick" in message:
                basis = message["tick"]
                ticker.update_index_price(to_number(basis.get("index_price", UNSET)))
                ticker.update_last_price(to_number(basis.get("contract_price", UNSET)))
            else:
                ticker.update_open_interest(to_number(message["data"][0].get("volume", UNSET)))
        ticker.update_timestamp(timestamp_from_ms(message.get("ts", UNSET)))
        if ticker.has_changed:
            yield ticker.to_message(local_timestamp)


class HuobiSwapTickerMapper(HuobiDerivativeTickerMapper):
    channels = (*HuobiDerivativeTickerMapper.channels, "funding_rate")


class HuobiLiquidationMapper(Mapper):
    """Of swaps: the symbol is the code of the contract."""

    channels: tuple[str, ...] = ("liquidation_orders",)

    def accepts(self, message: Json) -> bool:
        return message.get("op") == "notify" and message["topic"].endswith(".liquidation_orders")

    def map(self, message: Json, local_timestamp: str) -> Iterator[Liquidation]:
        for order in message["data"]:
            yield self.to_liquidation(order.get("contract_code", UNSET), order, local_timestamp)

    def to_liquidation(self, symbol: str, order: Json, local_timestamp: str) -> Liquidation:
        return Liquidation(
            symbol,
            self.exchange,
            UNSET,
            verbatim(order.get("price", UNSET)),
            verbatim(order.get("volume", UNSET)),
            to_side(order.get("direction")),
            timestamp_from_ms(order.get("created_at", UNSET)),
            local_timestamp,
        )


def _coin_of(symbol: str) -> str:
    return symbol.upper().partition("_")[0]


class HuobiFuturesLiquidationMapper(HuobiLiquidationMapper):
    """Notifications are by coin. Those of `contract_info` tell the alias of each contract; until then its orders are left out."""

    channels = ("liquidation_orders", "contract_info")
    spelling = Spelling(_coin_of)

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        # By the code of the contract.
        self._aliases: Remembered[str, str] = Remembered()

    def accepts(self, message: Json) -> bool:
        return message.get("op") == "notify" and message["topic"].endswith((".liquidation_orders", ".contract_info"))

    def map(self, message: Json, local_timestamp: str) -> Iterator[Liquidation]:
        tells_aliases = message["topic"].endswith(".contract_info")
        for row in message["data"]:
            code = row.get("contract_code", UNSET)
            if tells_aliases:
                # Of a type that is not known, the reference makes BTC_undefined.
                ending = ALIASES.get(row.get("contract_type"), "undefined")
                self._aliases[code] = f"{text_of(row.get('symbol', UNSET))}_{ending}"
            elif code in self._aliases:
                yield self.to_liquidation(self._aliases[code], row, local_timestamp)
