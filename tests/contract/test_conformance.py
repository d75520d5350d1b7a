"""Every bus of the registry passes the suite: in its own file of tests or, where it has none, here."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from tardis_machine.settings.buses import BUS_MODULES
from tests.contract.bus_under_test import load_bus
from tests.contract.buses.file import FileUnderTest
from tests.contract.conformance import BusConformance, pytest_generate_tests

__all__ = ["pytest_generate_tests"]


def has_own_tests(bus: str) -> bool:
    """Whether `test_<bus>_bus` runs the suite on it."""
    name = f"tests.contract.test_{bus}_bus"
    if find_spec(name) is None:
        return False
    suites = [
        found for found in vars(import_module(name)).values() if isinstance(found, type) and issubclass(found, BusConformance)
    ]
    return any(suite.under_test is load_bus(bus) for suite in suites if suite is not BusConformance)


def suite_of(bus: str) -> type[BusConformance]:
    """The suite for it."""
    return type(f"Test{bus.capitalize()}Bus", (BusConformance,), {"under_test": load_bus(bus)})


globals().update({f"Test{bus.capitalize()}Bus": suite_of(bus) for bus in BUS_MODULES if not has_own_tests(bus)})


def test_what_a_service_cannot_have_is_not_tested_and_the_rest_is() -> None:
    missing = [name for name, test in vars(suite_of("file")).items() if name.startswith("test_") and test is None]
    assert missing == [
        "test_what_is_refused_holds_up_nothing_else_and_is_kept",
        "test_dead_letters_are_copied_to_their_destination_with_the_reason",
        "test_dead_letters_whose_destination_refuses_them_too_are_in_their_files",
    ]
    assert suite_of("file").test_a_service_that_comes_later_is_waited_for
    assert all(getattr(suite_of("redis"), name) for name in vars(BusConformance) if name.startswith("test_"))


def test_a_bus_has_the_suite_in_its_own_file_or_here() -> None:
    assert has_own_tests("file")
    assert not has_own_tests("pigeon")
    assert suite_of("file").under_test is FileUnderTest
