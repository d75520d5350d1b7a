"""The schema as consumers rely on it: names, numbers and types, written down here a second time on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet

import tardis_machine.generated
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb

FILE: FileDescriptor = pb.DESCRIPTOR

# Fields whose type the name does not say; the others are strings, int64 (sequence) or Timestamps (…_ts).
SNAPSHOT = (
    "depth 1 uint32, bids 2 Level*, asks 3 Level*, event_ts 10, grouping 11 uint32, interval_ms 12 uint32, "
    "remove_crossed_levels 13 bool, sequence 14"
)
KEPT = {
    "NormalizedEvent": "source 1, exchange 2, symbol 3, local_ts 4, ingest_ts 5, origin 6 Origin, meta 10 MetaEntry*, "
    "trade 100 Trade, book_change 101 BookChange, book_snapshot 102 BookSnapshot, quote 103 Quote, "
    "derivative_ticker 104 DerivativeTicker, liquidation 105 Liquidation, option_summary 106 OptionSummary, "
    "book_ticker 107 BookTicker, grouped_book_snapshot 108 GroupedBookSnapshot, trade_bar 109 TradeBar, "
    "error 150 ControlError, disconnect 151 ControlDisconnect",
    "Trade": "trade_id 1, price_str 2, qty_str 3, side 4 Side, sequence 5, event_ts 10",
    "BookChange": "side 1 Side, action 2 Action, price_str 3, qty_str 4, level 5 int32, sequence 6, event_ts 10",
    "Level": "price_str 1, qty_str 2",
    "BookSnapshot": SNAPSHOT,
    "GroupedBookSnapshot": SNAPSHOT,
    "TradeBar": "kind 1 BarKind, interval 2 uint64, interval_ms 3 uint32, open_str 4, high_str 5, low_str 6, close_str 7, "
    "volume_str 8, trade_count 9 uint64, event_ts 10, end_ts 11",
    "Quote": "bid_price_str 1, bid_qty_str 2, ask_price_str 3, ask_qty_str 4, event_ts 10",
    "DerivativeTicker": "mark_price_str 1, index_price_str 2, funding_rate_str 3, event_ts 10",
    "Liquidation": "side 1 Side, price_str 2, qty_str 3, order_id 4, event_ts 10",
    "OptionSummary": "iv_str 1, delta_str 2, gamma_str 3, theta_str 4, vega_str 5, oi_str 6, event_ts 10",
    "BookTicker": "best_bid_price_str 1, best_bid_qty_str 2, best_ask_price_str 3, best_ask_qty_str 4, event_ts 10",
    "ControlError": "details 1, subsequent_errors 2 uint32, code 3 ErrorCode",
    "ControlDisconnect": "reason 1, close_code 2 uint32",
}
ADDED = {
    "NormalizedEvent": "event_id 7 bytes, sequence 8 uint64, null_fields 20 string*, millisecond_timestamps 21 uint32, "
    "session_end 152 SessionEnd",
    "Trade": "id_is_number 20 bool",
    "BookChange": "is_snapshot 20 bool, bids 21 Level*, asks 22 Level*, level_count 23 uint32, part 24 BookPart",
    "BookPart": "whole_event_id 1 bytes, index 2 uint32, count 3 uint32",
    "BookSnapshot": "name 20, interval_str 21, grouping_str 22, part 23 BookPart",
    "GroupedBookSnapshot": "name 20, interval_str 21, grouping_str 22, part 23 BookPart",
    "TradeBar": "name 20, buy_volume_str 21, sell_volume_str 22, vwap_str 23, bar_ts 24, interval_str 25",
    "Quote": "name 20, interval_ms 21 uint32, interval_str 22",
    "DerivativeTicker": "last_price_str 20, open_interest_str 21, funding_ts 22, predicted_funding_rate_str 23",
    "Liquidation": "id_is_number 20 bool",
    "OptionSummary": "option_type 20 OptionType, strike_price_str 21, expiration_ts 22, best_bid_price_str 23, "
    "best_bid_qty_str 24, best_bid_iv_str 25, best_ask_price_str 26, best_ask_qty_str 27, best_ask_iv_str 28, last_price_str 29, "
    "mark_price_str 30, rho_str 31, underlying_price_str 32, underlying_index 33",
    "ControlDisconnect": "symbols 20 string*, symbols_given 21 bool",
    "SessionEnd": "complete 1 bool, reason 2, entries 3 SessionEndEntry*, session_id 4, started_ts 5, ended_ts 6",
    "SessionEndEntry": "exchange 1, symbol 2, payload_case 3, count 4 uint64, first_sequence 5 uint64, last_sequence 6 uint64, "
    "first_local_ts 7, last_local_ts 8, digest 9 bytes",
}
ENUMS = {
    "Side": {"BUY": 1, "SELL": 2},
    "Action": {"UPSERT": 1, "DELETE": 2},
    "Origin": {"REALTIME": 1, "REPLAY": 2, "ARCHIVE": 3},
    "BarKind": {"TICK": 1, "TIME": 2, "VOLUME": 3},
    "ErrorCode": {"WS_CONNECT": 1, "WS_SEND": 2, "SOURCE_AUTH": 3, "SOURCE_RATE_LIMIT": 4},
    "OptionType": {"PUT": 1, "CALL": 2},
}
PREFIXES = {"BarKind": "BAR_KIND_", "ErrorCode": "ERROR_CODE_", "OptionType": "OPTION_TYPE_"}
SCALARS = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
}


def written(line: str) -> dict[str, tuple[int, str]]:
    fields = {}
    for item in line.split(", "):
        name, number, *given = item.split(" ")
        implied = "Timestamp" if name.endswith("_ts") else "int64" if name == "sequence" else "string"
        fields[name] = (int(number), given[0] if given else implied)
    return fields


def type_of(field: FieldDescriptor) -> str:
    named = field.message_type or field.enum_type
    return (named.name if named else SCALARS[field.type]) + ("*" if field.is_repeated else "")


@pytest.mark.parametrize("message", sorted(KEPT | ADDED))
def test_fields(message: str) -> None:
    expected = {**written(KEPT[message])} if message in KEPT else {}
    expected |= written(ADDED[message]) if message in ADDED else {}
    found = {field.name: (field.number, type_of(field)) for field in FILE.message_types_by_name[message].fields}
    assert found == expected


def test_no_other_messages_and_enums() -> None:
    assert set(FILE.message_types_by_name) == set(KEPT | ADDED)
    assert set(FILE.enum_types_by_name) == set(ENUMS)


@pytest.mark.parametrize("enum", ENUMS)
def test_enums(enum: str) -> None:
    prefix = PREFIXES.get(enum, f"{enum.upper()}_")
    expected = {prefix + name: number for name, number in (ENUMS[enum] | {"UNSPECIFIED": 0}).items()}
    assert {value.name: value.number for value in FILE.enum_types_by_name[enum].values} == expected


@pytest.mark.parametrize("message", sorted(KEPT | ADDED))
def test_absence_can_be_told_from_zero(message: str) -> None:
    without = [f.name for f in FILE.message_types_by_name[message].fields if not f.has_presence and not f.is_repeated]
    assert without == []


@pytest.mark.parametrize("message", sorted(set(KEPT) & set(ADDED)))
def test_additions_are_numbered_apart(message: str) -> None:
    low = {name for name, (number, _) in written(ADDED[message]).items() if number < 20}
    assert low <= {"event_id", "sequence"}


def test_the_descriptor_set_is_whole() -> None:
    """Spark reads it without our code: all files are in it, dependencies first."""
    data = (Path(tardis_machine.generated.__file__).parent / "normalized_event.binpb").read_bytes()
    files = FileDescriptorSet.FromString(data).file
    assert [file.name for file in files] == ["google/protobuf/timestamp.proto", FILE.name]
    assert [message.name for message in files[1].message_type] == list(FILE.message_types_by_name)
