"""What an exchange declares: versions by date, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from tardis_machine.exchanges._exchange import Exchange, Version, make_mappers, switch_dates_us, validate
from tardis_machine.exchanges._mapper import Json, Mapper
from tardis_machine.exchanges._spelling import LOWER_CASE, Spelling
from tardis_machine.messages import Message, parse_timestamp_us

FIRST, SECOND = "2020-01-01T00:00:00.000Z", "2021-01-01T00:00:00.000Z"


class OldMapper(Mapper):
    channels: tuple[str, ...] = ("trades",)

    def accepts(self, message: Json) -> bool:
        return False

    def map(self, message: Json, local_timestamp: str) -> Sequence[Message]:
        return ()


class NewMapper(OldMapper):
    channels = ("trades-all",)


class IndexMapper(OldMapper):
    channels = ("trades", "index")
    spellings: ClassVar[Mapping[str, Spelling]] = {"indexes": LOWER_CASE}


def exchange(channels: tuple[str, ...] = ("trades", "trades-all", "index"), **mappers: Sequence[Version]) -> Exchange:
    return Exchange("venue", "https://venue.example", channels, mappers, lambda message, date_us: None)


def test_a_version_ends_before_its_date() -> None:
    venue = exchange(trade=(Version(OldMapper, FIRST), Version(NewMapper, SECOND), Version(OldMapper)))
    validate(venue)
    first, second = parse_timestamp_us(FIRST), parse_timestamp_us(SECOND)
    assert switch_dates_us(venue, ["trade"]) == [first, second]
    dates: list[tuple[int | None, type[Mapper]]] = [
        (first - 1, OldMapper),
        (first, NewMapper),
        (second - 1, NewMapper),
        (second, OldMapper),
        (None, OldMapper),
    ]
    for at_us, expected in dates:
        assert [type(mapper) for mapper in make_mappers(venue, ["trade"], at_us)] == [expected]


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({"trades": (Version(OldMapper),)}, "venue: mappers['trades'] is of no data type; there are trade, book_change, "),
        ({"trade": ()}, "venue: mappers['trade'] has no version"),
        ({"trade": (Version(OldMapper, FIRST),)}, f"venue: mappers['trade'] ends on {FIRST}: the last version has no end"),
        (
            {"trade": (Version(OldMapper), Version(NewMapper))},
            "venue: mappers['trade'] has a version until None; all but the last",
        ),
        ({"trade": (Version(OldMapper, "2020"), Version(NewMapper))}, "venue: mappers['trade'] has a version until '2020'; all"),
        (
            {"trade": (Version(OldMapper, SECOND), Version(NewMapper, FIRST), Version(OldMapper))},
            "venue: mappers['trade'] has versions out of order: each ends later than the one before it",
        ),
        (
            {"trade": (Version(OldMapper, FIRST), Version(NewMapper, FIRST), Version(OldMapper))},
            "venue: mappers['trade'] has versions out of order",
        ),
        (
            {"channels": ("trades",), "trade": (Version(OldMapper, FIRST), Version(NewMapper))},
            "venue: mappers['trade'] has NewMapper, which reads 'trades-all', and that is not in channels",
        ),
        (
            {"book_change": (Version(IndexMapper),)},
            "venue: mappers['book_change'] has IndexMapper, which has a spelling for 'indexes', and does not read that",
        ),
        ({"channels": ("trades", "index", "trades")}, "venue: channels has 'trades' more than once"),
    ],
)
def test_what_is_declared_wrongly_is_named(declared: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError) as caught:
        validate(exchange(**declared))
    assert str(caught.value).startswith(problem)


def test_all_that_is_wrong_is_named_at_once() -> None:
    with pytest.raises(
        ValueError, match=r"^venue: channels has 'x' more than once; venue: .*'trades'.*; venue: mappers\['quote'\]"
    ):
        validate(exchange(("x", "x"), trade=(Version(OldMapper),), quote=()))
