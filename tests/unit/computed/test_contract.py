"""A computed type of one's own needs a description and a computation, nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tardis_machine.computed import Computable, Computation, Computer, compute
from tardis_machine.messages import Liquidation, Message, Trade, TradeBar

NOW = "2024-01-01T00:00:00.000Z"


@dataclass(frozen=True)
class LargeTrades(Computable):
    """Tells of trades of some size, as if they were liquidations."""

    amount: float

    SOURCE: ClassVar[type[Message]] = Trade
    RESULT: ClassVar[type[Message]] = Liquidation
    FORMS: ClassVar[tuple[str, ...]] = ("large_trade_{n}",)

    @classmethod
    def parse(cls, data_type: str) -> LargeTrades | None:
        return cls(float(data_type.removeprefix("large_trade_"))) if data_type.startswith("large_trade_") else None

    def begin(self) -> Computation:
        return Pick(self.amount)


class Pick(Computation):
    def __init__(self, amount: float) -> None:
        self.amount = amount

    def update(self, message: Trade, out: list[Message]) -> None:
        if message.amount >= self.amount:
            out += [Liquidation(*(getattr(message, field) for field in Trade.__struct_fields__))] * 2


def trade(amount: float) -> Trade:
    return Trade("S", "E", str(amount), 10, amount, "buy", NOW, NOW)


def test_a_type_of_ones_own_stands_beside_the_others() -> None:
    messages: list[Message] = [trade(1), trade(5)]
    got = [type(message) for message in compute(messages, [LargeTrades(2), "trade_bar_2ticks"])]
    assert got == [Trade, Trade, Liquidation, Liquidation, TradeBar]
    assert [type(message) for message in Computer([LargeTrades(2)]).feed(messages)] == [Liquidation, Liquidation]
