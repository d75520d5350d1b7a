"""The event that must come of a message, from the schema and the client's JSON alone: no code of the encoder or decoder is used.

Invariant: every field of the message has its place in the event, and the event holds nothing that the message does not account for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from tardis_machine.generated.lakehouse.bronze.v1.normalized_event_pb2 import NormalizedEvent

LOCAL_BIT = 1
TIME_BITS = {"timestamp": 2, "fundingTimestamp": 4, "expirationDate": 4, "openTimestamp": 4, "closeTimestamp": 8}
"""What a time with three fraction digits adds to `millisecond_timestamps`."""
ENVELOPE = ("type", "exchange", "symbol", "localTimestamp")

_QUOTED = {"id": "trade_id", "price": "price_str", "amount": "qty_str", "side": "side", "timestamp": "event_ts"}
_SNAPSHOT = {
    **{name: name for name in ("name", "depth", "bids", "asks", "grouping")},
    "interval": "interval_ms",
    "timestamp": "event_ts",
}
FIELDS: Mapping[str, Mapping[str, str]] = {
    "trade": _QUOTED,
    "liquidation": {**_QUOTED, "id": "order_id"},
    "book_change": {"isSnapshot": "is_snapshot", "bids": "bids", "asks": "asks", "timestamp": "event_ts"},
    "book_snapshot": _SNAPSHOT,
    "grouped_book_snapshot": _SNAPSHOT,
    "quote": {
        "name": "name",
        "interval": "interval_ms",
        "timestamp": "event_ts",
        "bids.price": "bid_price_str",
        "bids.amount": "bid_qty_str",
        "asks.price": "ask_price_str",
        "asks.amount": "ask_qty_str",
    },
    "derivative_ticker": {
        "lastPrice": "last_price_str",
        "openInterest": "open_interest_str",
        "fundingRate": "funding_rate_str",
        "fundingTimestamp": "funding_ts",
        "predictedFundingRate": "predicted_funding_rate_str",
        "indexPrice": "index_price_str",
        "markPrice": "mark_price_str",
        "timestamp": "event_ts",
    },
    "option_summary": {
        "optionType": "option_type",
        "strikePrice": "strike_price_str",
        "expirationDate": "expiration_ts",
        "bestBidPrice": "best_bid_price_str",
        "bestBidAmount": "best_bid_qty_str",
        "bestBidIV": "best_bid_iv_str",
        "bestAskPrice": "best_ask_price_str",
        "bestAskAmount": "best_ask_qty_str",
        "bestAskIV": "best_ask_iv_str",
        "lastPrice": "last_price_str",
        "openInterest": "oi_str",
        "markPrice": "mark_price_str",
        "markIV": "iv_str",
        **{greek: f"{greek}_str" for greek in ("delta", "gamma", "vega", "theta", "rho")},
        "underlyingPrice": "underlying_price_str",
        "underlyingIndex": "underlying_index",
        "timestamp": "event_ts",
    },
    "book_ticker": {
        "askAmount": "best_ask_qty_str",
        "askPrice": "best_ask_price_str",
        "bidPrice": "best_bid_price_str",
        "bidAmount": "best_bid_qty_str",
        "timestamp": "event_ts",
    },
    "trade_bar": {
        "name": "name",
        "kind": "kind",
        "interval": "interval",
        **{name: f"{name}_str" for name in ("open", "high", "low", "close", "volume", "vwap")},
        "buyVolume": "buy_volume_str",
        "sellVolume": "sell_volume_str",
        "trades": "trade_count",
        "openTimestamp": "event_ts",
        "closeTimestamp": "end_ts",
        "timestamp": "bar_ts",
    },
    "error": {"details": "details", "subsequentErrorsCount": "subsequent_errors", "code": "code"},
    "disconnect": {"reason": "reason", "closeCode": "close_code", "symbols": "symbols"},
}
"""By payload case: where each field of the JSON goes."""


def parse_exactly(line: str | bytes) -> dict[str, Any]:
    """A message with its numbers as they are written."""
    message: dict[str, Any] = json.loads(line, parse_float=Decimal, parse_int=Decimal)
    return message


def payload_case(message: Mapping[str, Any]) -> str:
    """The field of the event that holds it."""
    kind = str(message["type"])
    if kind == "book_snapshot" and message["name"].startswith("quote"):
        return "quote"
    return f"grouped_{kind}" if "grouping" in message else kind


def expected_event(message: Mapping[str, Any]) -> NormalizedEvent:
    """The event without what the session adds: source, ids, numbers, meta."""
    case = payload_case(message)
    event = NormalizedEvent(exchange=message["exchange"], symbol=message.get("symbol"))
    event.local_ts.CopyFrom(to_instant(message["localTimestamp"]))
    payload = getattr(event, case)
    payload.SetInParent()
    fields = {name: value for name, value in message.items() if name not in ENVELOPE}
    if case == "quote":
        assert fields.pop("depth") == 1
        for side in ("bids", "asks"):
            [level] = fields.pop(side)
            fields |= {f"{side}.{name}": value for name, value in level.items()}
    for name, value in fields.items():
        if value is None:
            event.null_fields.append(name)
        else:
            set_field(payload, FIELDS[case][name], value)
    if case == "trade_bar" and fields["kind"] == "time":
        payload.interval_ms = int(fields["interval"])
    if case == "disconnect" and "symbols" in fields:
        payload.symbols_given = True
    times = {"localTimestamp": LOCAL_BIT} | TIME_BITS
    in_milliseconds = sum(bit for name, bit in times.items() if len(message.get(name, "").rpartition(".")[2]) == len("163Z"))
    if in_milliseconds:
        event.millisecond_timestamps = in_milliseconds
    return event


def set_field(payload: Message, name: str, value: Any) -> None:
    """Sets what one field of the JSON says, as the schema's type of the field asks for it."""
    field = payload.DESCRIPTOR.fields_by_name[name]
    if name.endswith("_str"):
        setattr(payload, name, format(value, "f"))
    elif name.endswith("_ts"):
        getattr(payload, name).CopyFrom(to_instant(value))
    elif name in ("bids", "asks"):
        for level in value:
            places = {"price_str": "price", "qty_str": "amount"}
            getattr(payload, name).add(**{place: format(level[part], "f") for place, part in places.items() if part in level})
    elif field.type == FieldDescriptor.TYPE_ENUM:
        numbers = field.enum_type.values_by_name
        prefix = field.enum_type.values[0].name.removesuffix("UNSPECIFIED")
        setattr(payload, name, numbers[f"{prefix}{'UNSPECIFIED' if value == 'unknown' else value.upper()}"].number)
    elif field.is_repeated:
        getattr(payload, name).extend(value)
    else:
        setattr(payload, name, int(value) if isinstance(value, Decimal) else value)


def to_instant(text: str) -> Timestamp:
    """A time of the JSON."""
    instant = Timestamp()
    instant.FromDatetime(datetime.fromisoformat(text))
    return instant
