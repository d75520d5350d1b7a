"""The file bus: Parquet files that appear whole, for the lake to read.

One batch is one file, so that confirmed means renamed into place; how large and how old a file may get is how large and how old a
batch may get. All files lie in one folder, whatever their destination: that is a column.

Invariant: a name that begins with `part-` is a whole, durable file. What is being written begins with a dot and has another ending.
Names and times of files grow in the order of the batches, also when the clock steps back.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from binascii import hexlify
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import MissingExtraError, TerminalDeliveryError, TransientDeliveryError
from ...settings import Option, path, size_bytes
from ..contract import Failure, Limits, Record, Records, Route
from ..options import common_bus_options
from ..routing import Routing

if TYPE_CHECKING:
    import pyarrow

__all__ = ["OPTIONS", "REQUIRED", "FileBus", "create_bus", "create_routing", "sync"]

OPTIONS = (
    Option(name="file-dir", help="Folder for the Parquet files", group="file", parse=path),
    Option(
        name="file-max-bytes",
        help="Size at which the next file begins, before compression",
        group="file",
        parse=size_bytes(1024),
        default=64 * 1024**2,
        key="max_batch_bytes",
    ),
    *common_bus_options(
        "file",
        destination="dir",
        max_batch_size=50_000,
        max_batch_delay_ms=1000,
        aliases={"max-batch-size": ("max-records",), "max-batch-delay-ms": ("max-age",)},
    ),
)
REQUIRED = ("file-dir",)

DESTINATION = "events"
"""What the column says where no routing does."""
_RECORD_BYTES = 1 << 30
_TIME_FORMAT = "%Y%m%dT%H%M%S.%f"
_EPOCH = datetime.fromtimestamp(0, UTC)
# Parquet's own limit is 2 GiB a column of a row group.
_BATCH_BYTES = 1 << 30


def create_bus(options: Mapping[str, Any]) -> FileBus:
    """The bus as its options say."""
    return FileBus(options["dir"])


def create_routing(options: Mapping[str, Any]) -> Routing:
    """Where its records go."""
    return Routing.from_options(options, DESTINATION)


class FileBus:
    """Writes each batch as a Parquet file with the columns value, key, headers and destination."""

    name = "file"
    limits = Limits(batch_records=10_000_000, batch_bytes=_BATCH_BYTES, record_bytes=_RECORD_BYTES, send_timeout_s=120.0)

    def __init__(self, folder: Path) -> None:
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise MissingExtraError("the file bus", "file") from None
        self._folder = folder
        self._written = 0
        self._last_us = 0
        """When the newest file was written, by its name."""

    async def connect(self) -> None:
        """Makes the folder, shows that it can be written, and removes what was left half-written there."""
        import asyncio  # not at the top: `--help` reads this file for its options

        await asyncio.to_thread(self._prepare)

    def _prepare(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            probe = self._folder / f".probe-{os.getpid()}"
            probe.write_bytes(b"?")
            probe.unlink()
            for hidden in self._folder.glob(".part-*.new"):
                if not _is_being_written(hidden):
                    hidden.unlink(missing_ok=True)
            newest = max((path.name for path in self._folder.glob("part-[0-9]*.parquet")), default="")
            self._last_us = max(self._last_us, _named_us(newest))
        except OSError as error:
            if isinstance(error, FileExistsError):
                raise TerminalDeliveryError(f"--file-dir: {str(self._folder)!r} is not a folder") from None
            raise self._unwritable(error) from error

    async def check(self) -> Sequence[str]:
        """Sentences for `doctor`."""
        await self.connect()
        space = os.statvfs(self._folder)
        free_mib = space.f_bavail * space.f_frsize // 1024**2
        return [f"the folder {self._folder} can be written", f"its disk has {free_mib} MiB free"]

    async def send(self, batch: Sequence[Record]) -> Sequence[Failure]:
        """One file."""
        import asyncio

        gate = _Gate()
        try:
            await asyncio.to_thread(self._write, batch, gate)
        except asyncio.CancelledError:
            gate.shut()
            raise
        except OSError as error:
            raise self._unwritable(error) from error
        return []

    def _write(self, batch: Sequence[Record], gate: _Gate) -> None:
        import pyarrow.parquet

        self._written += 1
        self._last_us = max(time.time_ns() // 1000, self._last_us + 1)
        at = _EPOCH + timedelta(microseconds=self._last_us)
        name = f"part-{at:{_TIME_FORMAT}}-{os.getpid()}-{self._written:06d}.parquet"
        hidden = self._folder / f".{name}.new"
        try:
            pyarrow.parquet.write_table(
                to_table(batch),
                hidden,
                compression="zstd",
                use_dictionary=["key", "destination", "headers.key_value.key"],
                write_statistics=False,
            )
            # Who reads the folder goes by the times of files.
            os.utime(hidden, ns=(self._last_us * 1000, self._last_us * 1000))
            sync(hidden)
            if gate.pass_through(lambda: hidden.rename(self._folder / name)):
                sync(self._folder)
        finally:
            hidden.unlink(missing_ok=True)

    async def close(self) -> None:
        """Nothing is open between batches."""

    def _unwritable(self, error: OSError) -> TransientDeliveryError:
        return TransientDeliveryError(f"files can't be written to {self._folder}: {error.strerror or error}")


class _Gate:
    """Lets a thread do the last, visible step unless who waited for it is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_shut = False

    def pass_through(self, step: Callable[[], object]) -> bool:
        with self._lock:
            if self._is_shut:
                return False
            step()
            return True

    def shut(self) -> None:
        with self._lock:
            self._is_shut = True


def _named_us(name: str) -> int:
    """When a file was written, by its name; 0 for one that is named otherwise."""
    try:
        at = datetime.strptime(name.split("-")[1], _TIME_FORMAT).replace(tzinfo=UTC)
    except (IndexError, ValueError):
        return 0
    return (at - _EPOCH) // timedelta(microseconds=1)


def _is_being_written(hidden: Path) -> bool:
    """Whether it belongs to another process that still runs; this one writes nothing while it connects."""
    pid = int(hidden.name.split("-")[2])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid()


def sync(target: Path) -> None:
    """Returns when a file, or the names in a folder, are on disk."""
    fd = os.open(target, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def to_table(batch: Sequence[Record]) -> pyarrow.Table:
    """The batch as columns; what a route has is built once, and then taken for each of its rows."""
    import pyarrow as pa

    records = Records.of(batch)
    routes, events = records.routes, records.events
    distinct = list(dict.fromkeys(routes))
    numbers = {route: number for number, route in enumerate(distinct)}
    rows = _integers(map(numbers.__getitem__, routes))
    columns = {
        "value": _texts([event.value for event in events], pa.binary()),
        "key": _texts([route.key.encode() for route in distinct]).take(rows),
        "headers": _to_headers([event.event_id for event in events], routes, distinct, rows),
        "destination": _texts([route.destination.encode() for route in distinct]).take(rows),
    }
    return pa.Table.from_arrays(list(columns.values()), names=list(columns))


def _to_headers(
    ids: Sequence[bytes], routes: Sequence[Route], distinct: Sequence[Route], rows: pyarrow.Int32Array
) -> pyarrow.MapArray:
    import pyarrow as pa

    count = len(ids)
    hexes = hexlify(b"".join(ids))
    if len({tuple(name for name, _ in (*route.headers_before, *route.headers_after)) for route in distinct}) > 1:
        return _to_varied_headers([hexes[start : start + 32] for start in range(0, 32 * count, 32)], routes)
    first = distinct[0]
    id_headers = ["eventId", *filter(None, [first.also_id_header])]
    names = [*(name for name, _ in first.headers_before), *id_headers, *(name for name, _ in first.headers_after)]
    by_route = [[value for _, value in (*route.headers_before, *route.headers_after)] for route in distinct]
    columns = [_texts(values).take(rows) for values in zip(*by_route, strict=True)]
    at = len(first.headers_before)
    columns[at:at] = [_to_array(range(0, 32 * count + 1, 32), hexes, pa.string())] * len(id_headers)
    width = len(columns)
    # The first header of all rows, then the second, and so on, become the headers of the first row, then of the second.
    order = array("i", bytes(4 * count * width))
    for place in range(width):
        order[place::width] = array("i", range(place * count, (place + 1) * count))
    return pa.MapArray.from_arrays(
        _integers(range(0, count * width + 1, width)),
        _texts([name.encode() for name in names]).take(_integers(array("i", range(width)) * count)),
        pa.concat_arrays(columns).take(_integers(order)),
    )


def _to_varied_headers(hexes: Sequence[bytes], routes: Sequence[Route]) -> pyarrow.MapArray:
    """Where streams differ in the headers they have, as those from meta may."""
    import pyarrow as pa

    names: list[bytes] = []
    values: list[bytes] = []
    offsets = [0]
    for route, event_id in zip(routes, hexes, strict=True):
        also = [(route.also_id_header, event_id)] if route.also_id_header else []
        headers = [*route.headers_before, ("eventId", event_id), *also, *route.headers_after]
        names += [name.encode() for name, _ in headers]
        values += [value for _, value in headers]
        offsets.append(len(names))
    return pa.MapArray.from_arrays(_integers(offsets), _texts(names), _texts(values))


# Arrays are made from buffers: `pyarrow.array` would look at each item, and import pandas where there is one.


def _texts(items: Sequence[bytes], kind: pyarrow.DataType = None) -> pyarrow.Array:
    import pyarrow as pa

    return _to_array(chain((0,), accumulate(map(len, items))), b"".join(items), kind or pa.string())


def _to_array(offsets: Iterable[int], data: bytes, kind: pyarrow.DataType) -> pyarrow.Array:
    import pyarrow as pa

    packed = array("i", offsets)
    return pa.Array.from_buffers(kind, len(packed) - 1, [None, pa.py_buffer(packed), pa.py_buffer(data)])


def _integers(numbers: Iterable[int]) -> pyarrow.Int32Array:
    import pyarrow as pa

    packed = numbers if isinstance(numbers, array) else array("i", numbers)
    return pa.Array.from_buffers(pa.int32(), len(packed), [None, pa.py_buffer(packed)])
