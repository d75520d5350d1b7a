"""Every name that an option of a bus answers to, aliases too, in all places where options are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tardis_machine.errors import SettingsError
from tardis_machine.settings import Settings, from_keywords, resolve
from tardis_machine.settings.buses import BUS_MODULES, bus_options

ALIASES = {alias for bus in BUS_MODULES for option in bus_options(bus) for alias in option.aliases}


def ways(bus: str, name: str) -> dict[str, Callable[[], Settings]]:
    """Gives a value, which need not be a right one, in each place."""
    snake = name.removeprefix(f"{bus}-").replace("-", "_")
    first, *others = snake.split("_")
    camel = first + "".join(map(str.capitalize, others))
    return {
        "flag": lambda: resolve([f"--{name}=1"], {}),
        "variable": lambda: resolve([], {f"TM_{name}".upper().replace("-", "_"): "1"}),
        "keyword": lambda: from_keywords({bus: {snake: "1"}}, {}),
        "keyword of JavaScript": lambda: from_keywords({bus: {camel: "1"}}, {}),
        "event_bus": lambda: from_keywords({"event_bus": {"provider": bus, snake: "1"}}, {}),
        "eventBus": lambda: from_keywords({"eventBus": [{"provider": bus, camel: "1"}]}, {}),
    }


def is_known(give: Callable[[], Settings]) -> bool:
    """Whether the name is one, whatever is wrong with its value."""
    try:
        give()
    except SettingsError as error:
        return not any("is not an option" in problem or "is not a setting" in problem for problem in error.problems)
    return True


@pytest.mark.parametrize("bus", BUS_MODULES)
def test_every_name_is_known_everywhere(bus: str) -> None:
    names = [name for option in bus_options(bus) for name in option.names]
    unknown = {(name, way) for name in names for way, give in ways(bus, name).items() if not is_known(give)}
    assert unknown == set()
    assert [way for way, give in ways(bus, f"{names[-1]}x").items() if is_known(give)] == []


def test_names_that_people_type_are_among_them() -> None:
    typed = {"nats-pass", "kinesis-access-key", "kinesis-secret-key", "sqs-access-key", "sqs-secret-key"}
    assert typed <= ALIASES


def test_a_name_and_its_alias_are_not_given_together() -> None:
    keywords: dict[str, Any] = {"servers": "a", "subject": "s", "user": "u", "password": "one", "pass": "two"}
    with pytest.raises(SettingsError) as caught:
        from_keywords({"nats": keywords}, {})
    assert len(caught.value.problems) == 1
    assert "one" not in str(caught.value).split()
    assert "two" not in str(caught.value).split()
