"""The public interface is what this list says, and nothing heavy is loaded for it."""

from __future__ import annotations

import subprocess
import sys

import tardis_machine
from tardis_machine import errors


def test_public_names_are_pinned() -> None:
    assert sorted(tardis_machine.__all__) == [
        "Normalizer",
        "OrderBook",
        "TardisMachine",
        "__version__",
        "book_at",
        "book_at_sync",
        "clear_cache",
        "combine",
        "compute",
        "download_datasets",
        "find_instrument_symbols",
        "get_api_key_access_info",
        "get_exchange_details",
        "get_instrument_info",
        "replay",
        "replay_arrow",
        "replay_arrow_sync",
        "replay_normalized",
        "replay_normalized_sync",
        "replay_sync",
        "stream",
        "stream_normalized",
        "stream_normalized_sync",
        "stream_sync",
        "to_json",
        "to_pandas",
        "to_polars",
        "to_table",
    ]
    for name in tardis_machine.__all__:
        assert getattr(tardis_machine, name) is not None
    assert callable(tardis_machine.replay)
    assert callable(tardis_machine.combine)
    assert callable(tardis_machine.compute)


def test_errors_are_one_tree_and_all_are_named() -> None:
    found = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert found == set(errors.__all__)
    assert all(issubclass(getattr(errors, name), errors.TardisMachineError) for name in errors.__all__)
    assert errors.__doc__ is not None
    assert all(name in errors.__doc__ for name in errors.__all__)


def test_the_machine_without_a_bus_loads_no_bus() -> None:
    program = """
import sys, tardis_machine.server.app, tardis_machine.processes.jobs.replay, tardis_machine.processes.jobs.live
print([name for name in sys.modules if "eventbus" in name or "pyspark" in name])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_worker_loads_no_http_client() -> None:
    program = """
import sys, tardis_machine.processes.jobs.replay
print([name for name in ("aiohttp", "tardis_machine.history.client", "tardis_machine.realtime.connection") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
