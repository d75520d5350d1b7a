"""An event bus of one's own: appends each record to a file, as a line of JSON. Turned on with `--bus lines --bus-option path=FILE`."""

import base64
import json
from pathlib import Path

from tardis_machine.errors import TransientDeliveryError
from tardis_machine.eventbus.contract import Limits
from tardis_machine.eventbus.options import common_bus_options
from tardis_machine.eventbus.routing import Routing
from tardis_machine.settings import Option, path

# Its own options, and those that every bus has: routing, templates, headers, batches, queue, retries, dead letters.
OPTIONS = (
    Option(name="lines-path", help="File that takes the lines", group="lines", parse=path),
    *common_bus_options("lines", destination="topic"),
)
REQUIRED = ("lines-path",)


def create_bus(options):
    return LinesBus(options["path"])


def create_routing(options):
    return Routing.from_options(options, "events")


class LinesBus:
    name = "lines"
    limits = Limits(batch_records=10_000, batch_bytes=64 * 1024**2, record_bytes=16 * 1024**2)

    def __init__(self, path: Path):
        self._path = path

    async def connect(self):
        try:
            self._path.open("ab").close()
        except OSError as error:
            raise TransientDeliveryError(f"{self._path} can't be written: {error.strerror}") from error

    async def check(self):
        return [f"{self._path} can be written"]

    async def send(self, batch):
        await self.connect()
        with self._path.open("a") as file:
            file.writelines(f"{json.dumps(to_line(record))}\n" for record in batch)
        return []  # every record is confirmed

    async def close(self):
        pass


def to_line(record):
    headers = {name: value.decode() for name, value in record.headers}
    return {"topic": record.destination, "key": record.key, "headers": headers, "value": base64.b64encode(record.value).decode()}
