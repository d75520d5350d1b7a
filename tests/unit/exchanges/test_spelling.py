"""How channels spell symbols: each way that a venue has, and what a mapper asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import pytest

from tardis_machine.exchanges._mapper import Json, Mapper
from tardis_machine.exchanges._spelling import AS_TYPED, EMPTY_LIST, LOWER_CASE, NO_SYMBOLS, UPPER_CASE, Spelling
from tardis_machine.filters import Filter
from tardis_machine.messages import UNSET, Message


def base_of(symbol: str) -> str:
    return symbol.upper().partition("-")[0]


def no_spot(symbol: str) -> str | None:
    return None if "/" in symbol else symbol


@pytest.mark.parametrize(
    ("spelling", "of_two", "of_all"),
    [
        (UPPER_CASE, ["BTC-USD", "BTC/USD"], UNSET),
        (LOWER_CASE, ["btc-usd", "btc/usd"], UNSET),
        (AS_TYPED, ["btc-USD", "btc/usd"], UNSET),
        (NO_SYMBOLS, UNSET, UNSET),
        (EMPTY_LIST, [], []),
        (Spelling(lambda symbol: symbol[:3]), ["btc", "btc"], UNSET),
        (Spelling(lambda symbol: symbol[:3], unique=True), ["btc"], UNSET),
        (Spelling(base_of, unique=True, every_symbol=()), ["BTC", "BTC/USD"], []),
        (Spelling(no_spot), ["btc-USD"], UNSET),
    ],
)
def test_a_spelling(spelling: Spelling, of_two: object, of_all: object) -> None:
    def symbols(asked: Sequence[str] | None) -> object:
        found = spelling.to_symbols(asked)
        return found if found is UNSET else list(found)  # type: ignore[arg-type]

    assert symbols(["btc-USD", "btc/usd"]) == of_two
    assert symbols(None) == of_all
    assert symbols([]) == (of_all if spelling.spell is None else [])


class IndexMapper(Mapper):
    channels = ("ticker", "index", "status")
    spelling = LOWER_CASE
    spellings: ClassVar[Mapping[str, Spelling]] = {"index": Spelling(base_of, unique=True), "status": NO_SYMBOLS}

    def accepts(self, message: Json) -> bool:
        return False

    def map(self, message: Json, local_timestamp: str) -> Sequence[Message]:
        return ()


def test_a_mapper_asks_each_channel_by_its_own_spelling() -> None:
    mapper = IndexMapper("venue")
    assert mapper.filters(["btc-perp", "BTC-0628"]) == [
        Filter("ticker", ["btc-perp", "btc-0628"]),
        Filter("index", ["BTC"]),
        Filter("status"),
    ]
    assert mapper.filters(None) == [Filter("ticker"), Filter("index"), Filter("status")]
