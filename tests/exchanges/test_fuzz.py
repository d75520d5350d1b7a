"""A few of the messages of `python -m tests.exchanges.fuzz`, and how much is remembered of what never ends."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import orjson
import pytest

from tardis_machine.dates import parse_date_us
from tardis_machine.exchanges import EXCHANGES, BookStep, Feed, Handshake, Json, Mapper, _remembered, make_mappers
from tardis_machine.exchanges._feed import FeedError, FrameKind
from tardis_machine.pipeline.normalizer import Normalizer
from tests.exchanges.fuzz import Mutator, Outcome, fuzz_feed, fuzz_mappers, transcript_of
from tests.exchanges.growth import held_by, history_sections, never_the_same

MESSAGES = 300
SEEDS = (1, 2)
LIMIT = 20
"""How many are remembered at most, in the tests of growth."""


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_what_is_never_sent_gives_messages_or_our_own_errors(exchange: str) -> None:
    for seed in SEEDS:
        for outcome in (fuzz_mappers(exchange, MESSAGES, seed), fuzz_feed(exchange, MESSAGES, seed)):
            assert not outcome.faults, "\n".join(outcome.faults)
    assert outcome.counts["messages"] or EXCHANGES[exchange].live is None


def test_the_same_seed_gives_the_same_messages() -> None:
    raw = b'{"table":"trade","data":[{"price":1.5,"symbol":"XBTUSD"}]}'
    first, second = (Mutator("7", ["XBTUSD", 1]) for _ in range(2))
    mutated = [first.raw(raw) for _ in range(50)]
    assert mutated == [second.raw(raw) for _ in range(50)]
    assert len(set(mutated)) > 30


def test_a_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fuzz itself: what must not be is seen."""
    monkeypatch.setattr("tests.exchanges.fuzz.to_json", lambda message: b'{"price":NaN}')
    outcome: Outcome = fuzz_mappers("bitmex", 50, 1)
    assert outcome.counts["faults"]
    assert "NaN is no JSON" in outcome.faults[0]


def mappers_of(exchange: str, at: str) -> Sequence[Mapper]:
    return make_mappers(EXCHANGES[exchange], EXCHANGES[exchange].data_types, parse_date_us(at))


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_new_symbols_without_end_are_not_all_remembered(exchange: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_remembered, "MAX_REMEMBERED", LIMIT)
    monkeypatch.setattr(_remembered, "MAX_LEVELS", LIMIT)
    for section in history_sections(exchange):
        of_round, mappers = never_the_same(section, exchange), mappers_of(exchange, section.at)
        sizes = []
        for rounds in (range(2 * LIMIT), range(2 * LIMIT, 6 * LIMIT)):
            for number in rounds:
                for raw in of_round(number):
                    feed(mappers, raw)
            sizes.append([held_by(mapper) for mapper in mappers])
        for mapper, before, after in zip(mappers, *sizes, strict=True):
            # What is remembered of a symbol is not the same for each; twice as much in four times as many is growth.
            assert after <= 2 * before + LIMIT, f"{type(mapper).__name__} of {section.line} grows from {before} to {after}"


@pytest.mark.parametrize("exchange", [name for name in EXCHANGES if EXCHANGES[name].live])
def test_a_feed_does_not_remember_all_symbols_that_it_hears_either(exchange: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_remembered, "MAX_REMEMBERED", LIMIT)
    live = EXCHANGES[exchange].live
    assert live is not None
    for section in transcript_of(exchange).of("live"):
        of_round = never_the_same(section, exchange)
        filters = Normalizer(exchange, section.data_types, realtime=True).filters(section.symbols)
        for some in live.feed.split(exchange, filters):
            one = live.feed(exchange, some)
            one.subscribe(0)
            sizes = []
            for rounds in (range(2 * LIMIT), range(2 * LIMIT, 6 * LIMIT)):
                for number in rounds:
                    for raw in of_round(number):
                        hear(one, raw)
                sizes.append(held_by(one))
            assert sizes[1] <= 2 * sizes[0] + LIMIT, f"{type(one).__name__} of {section.line} grows from {sizes[0]} to {sizes[1]}"


def hear(one: Feed, raw: bytes) -> None:
    """As a connection does, but for what raises, which would end one."""
    with suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        message = one.decode(raw)
        kind = one.classify(message)
        if isinstance(kind, BookStep):
            kind = one.books.take(kind)
        elif not isinstance(kind, FrameKind):
            kind = one.books.take_all(kind)
        if kind is FrameKind.ERROR:
            one.complaint(message)
        elif kind is not FrameKind.DATA:
            one.reply(message, 0)


def feed(mappers: Sequence[Mapper], raw: bytes) -> None:
    try:
        message = orjson.loads(raw)
    except ValueError:
        return
    for mapper in mappers:
        try:
            if mapper.accepts(message):
                list(mapper.map(message, "2026-06-01T00:00:00.000000Z"))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            continue  # which a normalizer tells as a NormalizeError


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_remembered, "MAX_REMEMBERED", 10)
    known = _remembered.Remembered[int, int]()
    for number in range(25):
        known[number] = number
    assert list(known) == list(range(15, 25))
    assert known.setdefault(24, 7) == 24
    seen = _remembered.Seen[int]()
    for number in range(11):
        seen.add(number)
    assert 10 in seen
    assert len(seen) == 6
    seen.discard(10)
    seen.discard(10)
    assert 10 not in seen


class ComplainedOf(Feed):
    """One whose errors are told in one form alone."""

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/")

    def subscribe(self, now_us: int) -> list[str]:
        return []

    def classify(self, message: Json) -> FrameKind:
        return FrameKind.ERROR

    def error(self, message: Json) -> FeedError:
        return FeedError("other", message["error"]["text"], is_final=True)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"error": {"text": "no"}}, ("other", "no", True)),
        ({"error": "rate limit"}, ("rate_limit", "{'error': 'rate limit'}", False)),
        ({"error": {"text": ""}}, ("other", "{'error': {'text': ''}}", True)),
        ({"error": {"text": None}}, ("other", "{'error': {'text': None}}", True)),
        ([], ("other", "[]", False)),
    ],
)
def test_a_complaint_in_an_unknown_form_is_told_as_it_is(message: Json, told: tuple[str, str, bool]) -> None:
    assert ComplainedOf("bitmex", []).complaint(message) == told
