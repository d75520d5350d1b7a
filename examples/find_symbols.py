"""Which BTC options does an exchange list, and since when is there history of it?

python examples/find_symbols.py deribit [URL of a machine or of the history API]     TM_API_KEY: a key or a machine's token
"""

from __future__ import annotations

import asyncio
import os
import sys

from tardis_machine import find_instrument_symbols, get_exchange_details


async def main(exchange: str, api_url: str | None = None) -> None:
    details = await get_exchange_details(exchange, api_url=api_url)
    print(f"{exchange}: since {details['availableSince']}, channels {', '.join(details['availableChannels'])}")
    wanted = {"type": "option", "baseCurrency": "BTC", "active": True}
    for found in await find_instrument_symbols([exchange], wanted, api_key=os.environ.get("TM_API_KEY"), api_url=api_url):
        print(f"{len(found['symbols'])} BTC options: {', '.join(found['symbols'][:3])}, …")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
