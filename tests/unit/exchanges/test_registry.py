"""The registry: names without an import, exchanges on demand, and nothing wrong in any of them."""

from __future__ import annotations

import subprocess
import sys

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
