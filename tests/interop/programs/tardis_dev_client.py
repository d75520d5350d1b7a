"""tardis-dev for Python against a machine: ENDPOINT KEY FOLDER COMPRESSION. Prints recorded lines; for `metadata`, JSON."""

import asyncio
import gzip
import json
import sys

import tardis_dev

endpoint, key, folder, compression = sys.argv[1:]
SPAN = {"from_date": "2020-02-02T00:00:00Z", "to_date": "2020-02-02T00:07:00Z"}


async def print_lines() -> None:
    channels = [tardis_dev.Channel("trade", ["XBTUSD"]), tardis_dev.Channel("orderBookL2", ["XBTUSD"])]
    place = {"endpoint": endpoint, "api_key": key, "cache_dir": folder, "compression": compression}
    lines = tardis_dev.replay("bitmex", filters=channels, decode_response=False, with_disconnects=True, **SPAN, **place)
    async for line in lines:
        sys.stdout.buffer.write(b"\n" if line is None else line.local_timestamp + b" " + line.message.rstrip(b"\n") + b"\n")


def print_metadata() -> None:
    place = {"api_key": key, "endpoint": endpoint}
    wanted = {"type": "perpetual"}
    tardis_dev.download_datasets(
        "bitmex",
        ["trades"],
        ["XBTUSD"],
        "2020-02-02",
        "2020-02-03",
        api_key=key,
        download_dir=folder,
        endpoint=f"{endpoint}/datasets",
    )
    with gzip.open(f"{folder}/bitmex_trades_2020-02-02_XBTUSD.csv.gz", "rt") as file:
        rows = file.read().splitlines()
    answers = {
        "symbols": tardis_dev.find_instrument_symbols(["bitmex"], wanted, **place),
        "instrument": tardis_dev.get_instrument_info("bitmex", symbol="XBTUSD", **place),
        "rows": rows,
    }
    print(json.dumps(answers))


if compression == "metadata":
    print_metadata()
else:
    asyncio.run(print_lines())
