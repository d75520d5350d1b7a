"""Filters over recordings, compared with the sample market, which makes only what is asked for, and with what mappers make of all."""

from __future__ import annotations

import re

import pytest

from tardis_machine.dates import parse_date_us
from tardis_machine.errors import NormalizeError
from tardis_machine.exchanges import EXCHANGES
from tardis_machine.filters import Filter, optimize_filters
from tardis_machine.messages import Message
from tardis_machine.pipeline.normalizer import Normalizer, symbol_filter
from tardis_machine.pipeline.selecting import merge_lines, missing_of, overlap_of, select_lines, to_selection
from tardis_machine.sample.market import SampleMarket
from tardis_machine.sample.recording import Recording
from tardis_machine.sample.venues import VENUES
from tests.exchanges.test_transcripts import TRANSCRIPTS, recorded_time
from tests.exchanges.transcript import Section, Transcript

FEBRUARY = parse_date_us("2020-02-01") // 60_000_000


def lines_of(transcript: Transcript, section: Section) -> list[bytes]:
    time = recorded_time(section)
    return [time + b" " + step.text.encode() for step in section.steps if step.verb == "<" and not step.packing]


# Of hyperliquid the first message with trades is passed over, of whatever coin; lighter's transcript has trades without their channel.
_NOT_BY_SYMBOL = ("hyperliquid", "lighter")


def normalized(exchange: str, data_type: str, symbols: list[str] | None, lines: list[bytes], at_us: int) -> list[str]:
    normalizer = Normalizer(exchange, [data_type], at_us)
    kept = symbol_filter(symbols, normalizer.filters(symbols))
    out: list[Message] = []
    for line in lines:
        try:
            out += normalizer.feed_lines([line])
        except NormalizeError as error:
            out += error.emitted  # type: ignore[arg-type]
    # As text, as there are numbers that are none.
    return [repr(message) for message in out if kept is None or getattr(message, "symbol", None) in kept]


def symbols_in(messages: list[str]) -> list[str]:
    """Of normalized messages."""
    return sorted({found[1] for message in messages if (found := re.search(r"symbol='([^']*)'", message))})


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda transcript: transcript.exchange)
def test_what_is_left_normalizes_as_all_of_it_does(transcript: Transcript) -> None:
    exchange = EXCHANGES[transcript.exchange]
    compared = 0
    for at in sorted({section.at for section in transcript.of("history")}):
        at_us = parse_date_us(at)
        sections = [section for section in transcript.of("history") if section.at == at]
        lines = [line for section in sections for line in lines_of(transcript, section)]
        named = symbols_in([m for kind in exchange.data_types for m in normalized(exchange.name, kind, None, lines, at_us)])
        recorded = to_selection(optimize_filters(Normalizer(exchange.name, exchange.data_types, at_us).filters(named)))
        for data_type in exchange.data_types:
            everything = normalized(exchange.name, data_type, None, lines, at_us)
            symbols = () if exchange.name in _NOT_BY_SYMBOL else symbols_in(everything)
            for asked in (None, *([symbol] for symbol in symbols)):
                filters = optimize_filters(Normalizer(exchange.name, [data_type], at_us).filters(asked))
                left = select_lines(exchange.name, lines, recorded, to_selection(filters), at_us)
                expected = normalized(exchange.name, data_type, asked, lines, at_us)
                assert normalized(exchange.name, data_type, asked, left, at_us) == expected, (data_type, asked)
                compared += len(expected)
    assert compared


@pytest.mark.parametrize("exchange", sorted(VENUES))
def test_filters_do_what_the_sample_market_does_with_them(exchange: str) -> None:
    recording = Recording(SampleMarket(activity=0.1), disconnects_per_day=0)
    at_us = (FEBRUARY + 1) * 60_000_000
    symbols = [each.symbol for each in recording.instruments(exchange, at_us)]
    all_filters = optimize_filters(Normalizer(exchange, EXCHANGES[exchange].data_types, at_us).filters(symbols))
    recorded = to_selection(all_filters)
    everything = recording.minute(exchange, FEBRUARY + 1, all_filters).split(b"\n")[:-1]
    for data_type in EXCHANGES[exchange].data_types:
        for asked in (None, symbols[:1]):
            filters = optimize_filters(Normalizer(exchange, [data_type], at_us).filters(asked))
            expected = recording.minute(exchange, FEBRUARY + 1, filters).split(b"\n")[:-1]
            left = select_lines(exchange, everything, recorded, to_selection(filters), at_us)
            assert left == expected, (data_type, asked)


def test_recordings_complete_each_other() -> None:
    asked = to_selection([Filter("trade", ["A", "B"]), Filter("quote"), Filter("book", [])])
    assert asked == {"trade": {"A", "B"}, "quote": None, "book": None}
    first = overlap_of(asked, to_selection([Filter("trade", ["A", "C"]), Filter("quote", ["A"])]))
    assert first == {"trade": {"A"}}
    assert missing_of(asked, first) == {"trade": {"B"}, "quote": None, "book": None}
    second = overlap_of(missing_of(asked, first), to_selection([Filter("trade"), Filter("quote"), Filter("book")]))
    assert second == {"trade": {"B"}, "quote": None, "book": None}
    assert missing_of(missing_of(asked, first), second) == {}


def test_lines_are_merged_by_time_and_an_empty_one_stays_behind_its_line() -> None:
    a = [b"", b"2020-02-01T00:00:01.0000000Z a", b"2020-02-01T00:00:03.0000000Z b", b""]
    b = [b"2020-02-01T00:00:02.0000000Z c", b"", b"2020-02-01T00:00:04.0000000Z d"]
    assert merge_lines([a, b]) == [b"", a[1], b[0], b"", a[2], b"", b[2]]
    assert merge_lines([a]) == a
