"""tardis-client 1.x against a machine: ENDPOINT (without /v1) KEY FOLDER. Prints recorded lines."""

import asyncio
import sys

from tardis_client import Channel, TardisClient

endpoint, key, folder = sys.argv[1:]


async def main() -> None:
    client = TardisClient(endpoint=endpoint, api_key=key, cache_dir=folder)
    channels = [Channel("trade", ["XBTUSD"]), Channel("orderBookL2", ["XBTUSD"])]
    span = ("2020-02-02T00:00", "2020-02-02T00:07")
    async for line in client.replay("bitmex", *span, channels, decode_response=False, with_disconnects=True):
        sys.stdout.buffer.write(b"\n" if line is None else line.local_timestamp + b" " + line.message.rstrip(b"\n") + b"\n")


asyncio.run(main())
