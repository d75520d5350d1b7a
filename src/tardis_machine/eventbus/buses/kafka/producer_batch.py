"""One batch on its way through one producer: handed over in slices, its failures found again.

Invariant: success is never reported, as a report takes the interpreter's lock for each record; a record is confirmed when the
producer holds nothing any more and has not reported it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import add, attrgetter, itemgetter, length_hint
from typing import TYPE_CHECKING, Any

from ....bronze.event import Event
from ...contract import Record, Records, Route
from .cluster import is_terminal

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

__all__ = ["ProducerBatch", "ProducerClient"]

# Records that are handed over before the event loop gets its turn: a millisecond.
_SLICE_RECORDS = 500

_value_of = attrgetter("value")
_topic_of, _key_of, _frame_of = map(itemgetter, range(3))  # of what is packed


class ProducerClient:
    """A producer, and what it reports."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        from confluent_kafka import Producer

        self.refused: list[tuple[KafkaError, Message]] = []
        # Something failed that may pass: what is behind it must not leave before it.
        self.has_failed = False
        self.producer: Producer = Producer({**settings, "on_delivery": self._note})

    def __len__(self) -> int:
        """How many records are outstanding."""
        return len(self.producer)

    def _note(self, error: KafkaError, message: Message) -> None:
        self.refused.append((error, message))
        if not is_terminal(error.name()):
            self.has_failed = True

    def poll(self) -> None:
        """Hears of failures; does not wait."""
        self.producer.poll(0)

    def take_back(self) -> None:
        """Has librdkafka drop all that it holds, and report it; this takes a moment."""
        self.has_failed = True
        self.producer.purge()
        self.poll()

    def close(self) -> None:
        """Waits for librdkafka's threads; where something is outstanding it would wait for that too, and is left alone."""
        if not len(self):
            self.producer.close()


class ProducerBatch:
    """A batch on its way through a producer."""

    def __init__(self, batch: Sequence[Record], client: ProducerClient, frames: Mapping[str, bytes]) -> None:
        client.refused.clear()
        self.batch = Records.of(batch)
        self._client = client
        self._packed = _Packed(frames)
        self._has_frames = bool(frames)
        self._handed_over = 0
        # What was refused before it was on its way, by its place in the batch.
        self._refused: dict[int, KafkaError] = {}

    def slices(self) -> Iterator[Records]:
        """Parts of the batch that may be handed over at once."""
        for start in range(0, len(self.batch), _SLICE_RECORDS):
            part = self.batch[start : start + _SLICE_RECORDS]
            self._handed_over = start + len(part)
            yield part

    def hand_over(self, part: Records) -> None:
        """Gives the slice to librdkafka, which copies it."""
        from confluent_kafka import KafkaError, KafkaException

        events = iter(part.events)
        if part.routes[0].has_headers:
            produce: Callable[[], object] = partial(self._produce, zip(part.routes, events, strict=False))
        else:
            produce = partial(deque, self._bare(part.routes, events), 0)
        while True:
            try:
                produce()
            except (KafkaException, BufferError) as error:
                said = error.args[0] if isinstance(error, KafkaException) else KafkaError(KafkaError._QUEUE_FULL)
                self._refused[self._handed_over - length_hint(events) - 1] = said
                if not is_terminal(said.name()):
                    self._client.has_failed = True
            else:
                return

    def _produce(self, records: Iterator[tuple[Route, Event]]) -> None:
        produce, packed = self._client.producer.produce, self._packed
        for route, event in records:
            topic, key, frame, headers, place, also = packed[route]
            event_id = event.event_id.hex()
            headers[place] = ("eventId", event_id)
            if also:
                headers[place + 1] = (also, event_id)
            # By position, which is faster: partition, two names of a callback and a timestamp are left as they are.
            produce(topic, frame + event.value if frame else event.value, key, -1, None, None, 0, headers)

    def _bare(self, routes: Sequence[Route], events: Iterator[Event]) -> Iterator[None]:
        # One call after another, with no step of Python between them. `produce_batch` looks each field of each record up by name.
        ready = [*map(self._packed.__getitem__, routes)]
        values = map(_value_of, events)
        if self._has_frames:
            values = map(add, map(_frame_of, ready), values)
        return map(self._client.producer.produce, map(_topic_of, ready), values, map(_key_of, ready))

    @property
    def has_failures(self) -> bool:
        return bool(self._refused or self._client.refused or self._client.has_failed)

    def failures(self) -> dict[int, KafkaError]:
        """Why records of the batch were not confirmed, by their place."""
        from confluent_kafka import KafkaError

        failures = dict(self._refused)
        places: dict[tuple[str | None, bytes | None], list[int]] = {}
        for index in range(len(self.batch) - 1, -1, -1):
            topic, _, frame, *_ = self._packed[self.batch.routes[index]]
            places.setdefault((topic, frame + self.batch.events[index].value), []).append(index)
        for error, message in self._client.refused:
            # The same bytes twice are the same record twice: it does not matter which of them is sent again.
            found = places.get((message.topic(), message.value()))
            if found:
                failures[found.pop()] = error
        if self._client.has_failed:
            never_left = KafkaError(KafkaError._PURGE_QUEUE)
            for index in range(self._handed_over, len(self.batch)):
                failures.setdefault(index, never_left)
        return failures


class _Packed(dict[Route, tuple[str, bytes, bytes, list[tuple[str, Any]], int, str]]):
    """What all records of a route have in common: topic, key, frame, headers, the place of the event id in these, its second name."""

    def __init__(self, frames: Mapping[str, bytes]) -> None:
        super().__init__()
        self._frames = frames

    def __missing__(self, route: Route) -> tuple[str, bytes, bytes, list[tuple[str, Any]], int, str]:
        headers: list[tuple[str, Any]] = [*route.headers_before, ("eventId", ""), *route.headers_after]
        if route.also_id_header:
            headers.insert(len(route.headers_before) + 1, (route.also_id_header, ""))
        frame = self._frames.get(route.destination, b"")
        place, also = len(route.headers_before), route.also_id_header
        packed = self[route] = (route.destination, route.key.encode(), frame, headers, place, also)
        return packed
