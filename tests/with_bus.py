"""Runs a command with a bus of its own: `python -m tests.with_bus kafka -- tardis-machine doctor`.

The real server is started on a free port, its destination is made, and the options of the bus are in the command's environment
(`TM_KAFKA_BROKERS`, …). The exit code is the command's.

Invariant: the server ends with the command.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tardis_machine.settings.buses import BUS_MODULES, bus_options
from tests.contract.bus_under_test import BusUnderTest, load_bus


def variables(bus: BusUnderTest) -> Mapping[str, str]:
    """The options of a bus that runs, for the environment."""
    options = {option.name: option for option in bus_options(bus.prefix)}
    found = {}
    for keyword, value in bus.direct_keywords().items():
        option = options[f"{bus.prefix}-{keyword}"]
        found[option.variable] = option.text_of(value)
    return found


def main(argv: list[str]) -> int:
    """The command."""
    if len(argv) < 3 or argv[0] not in BUS_MODULES or argv[1] != "--":
        print(f"usage: python -m tests.with_bus {'|'.join(BUS_MODULES)} -- COMMAND …", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix=f"{argv[0]}-") as folder:
        bus = load_bus(argv[0]).at_speed(Path(folder))
        try:
            return subprocess.run(argv[2:], env=os.environ | variables(bus), check=False).returncode
        except KeyboardInterrupt:
            return 130
        finally:
            bus.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
