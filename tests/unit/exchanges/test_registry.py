"""The registry: names without an import, exchanges on demand, and nothing wrong in any of them."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tardis_machine.errors import OptionsError
from tardis_machine.exchanges import EXCHANGES, exchange_named
from tardis_machine.exchanges._registry import EXCHANGE_MODULES, Registry

PACKAGE = "tardis_machine.exchanges"
FAMILIES = sorted(set(EXCHANGE_MODULES.values()))


def loaded_families(program: str) -> set[str]:
    """The modules of exchanges that a fresh interpreter has after a program."""
    program += f"\nimport sys\nprint(*[name.split('.')[2] for name in sys.modules if name.startswith('{PACKAGE}.')])"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return set(done.stdout.split()) & set(FAMILIES)


@pytest.mark.parametrize("name", EXCHANGES)
def test_every_exchange_is_valid_and_has_its_name(name: str) -> None:
    assert exchange_named(name) is EXCHANGES[name]
    assert EXCHANGES[name].name == name
    assert EXCHANGES[name].mappers


def test_names_need_no_import() -> None:
    program = f"from {PACKAGE} import EXCHANGES\nassert 'bitmex' in EXCHANGES and 'x' not in EXCHANGES and list(EXCHANGES)"
    assert loaded_families(program) == set()


@pytest.mark.parametrize(("name", "family"), [("bitmex", "bitmex"), ("okex-swap", "okex")])
def test_an_exchange_loads_no_other_family(name: str, family: str) -> None:
    assert loaded_families(f"from {PACKAGE} import exchange_named\nexchange_named({name!r})") == {family}


ALSO_LOADED = {"aster": {"binance"}, "binance_european_options": {"binance"}}
"""Their APIs are copies."""


def test_no_exchange_loads_another_family() -> None:
    """Each from a state in which none is loaded."""
    program = f"""
import os, sys
from {PACKAGE} import EXCHANGE_MODULES, exchange_named
for name, family in EXCHANGE_MODULES.items():
    if not os.fork():
        exchange_named(name)
        loaded = {{module.split('.')[2] for module in sys.modules if module.startswith('{PACKAGE}.')}}
        os.write(1, (' '.join([name, *(loaded & set(EXCHANGE_MODULES.values()))]) + chr(10)).encode())
        os._exit(0)
    os.wait()
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    loaded = {name: set(families) for name, *families in map(str.split, done.stdout.splitlines())}
    assert loaded == {name: {family} | ALSO_LOADED.get(family, set()) for name, family in EXCHANGE_MODULES.items()}


def test_an_idle_server_has_no_exchange_in_memory(tmp_path: Path) -> None:
    """However many there are: neither the server nor its worker loads one before somebody asks for it."""
    program = f"""
import asyncio, os
from pathlib import Path
from tardis_machine import TardisMachine

async def idle():
    machine = TardisMachine(cache_dir={str(tmp_path)!r}, workers=1)
    await machine.start(port=0)
    await asyncio.sleep(1)
    for child in Path(f'/proc/self/task/{{os.getpid()}}/children').read_text().split():
        mapped = Path(f'/proc/{{child}}/maps').read_text()
        assert 'python' in mapped, child
        assert 'exchanges.binance' not in mapped and 'exchanges.bitmex' not in mapped, child
    await machine.stop()

asyncio.run(idle())"""
    assert loaded_families(program) == set()


def test_a_request_loads_its_family_alone() -> None:
    program = (
        "from tardis_machine.pipeline.request import parse_normalized_request\n"
        "parse_normalized_request({'exchange': 'deribit', 'from': '2024-01-01', 'to': '2024-01-02', 'dataTypes': ['trade']})"
    )
    assert loaded_families(program) == {"deribit"}


def test_to_iterate_loads_all() -> None:
    assert loaded_families(f"from {PACKAGE} import EXCHANGES\nlist(EXCHANGES.values())") == set(FAMILIES)


@pytest.mark.parametrize("name", ["nowhere", "", None, 7, ["bitmex"], "x" * 500])
def test_an_unknown_name_is_answered_with_those_there_are(name: object) -> None:
    with pytest.raises(OptionsError, match=f"^exchange: expected one of {', '.join(sorted(EXCHANGES))}, got ") as caught:
        exchange_named(name)
    assert len(str(caught.value)) < 120 + len(", ".join(EXCHANGES))


def test_a_module_says_what_each_of_its_exchanges_is(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module(f"{PACKAGE}.bitmex")
    monkeypatch.setattr(module, "ABOUT", {"bitmax": module.ABOUT["bitmex"]})
    with pytest.raises(ValueError, match="the module bitmex declares bitmex, but is ABOUT bitmax"):
        Registry({"bitmex": "bitmex"})["bitmex"]


@pytest.mark.parametrize(
    ("modules", "problem"),
    [
        (
            {"bitmex": "bitmex", "bitmex-spot": "bitmex"},
            "the module bitmex declares bitmex, but the registry has bitmex, bitmex-spot",
        ),
        ({"bybit": "bybit"}, "the module bybit declares bybit, bybit-options, bybit-spot, but the registry has bybit for it"),
    ],
)
def test_a_module_declares_what_the_table_says(modules: dict[str, str], problem: str) -> None:
    registry = Registry(modules)
    with pytest.raises(ValueError, match=problem):
        registry[next(iter(modules))]
