"""Where folders are unless told otherwise: with the user whose they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tardis_machine.settings import resolve
from tardis_machine.settings.defaults import cache_dir, state_dir


@pytest.mark.parametrize(
    ("platform", "environ", "expected"),
    [
        ("linux", {"HOME": "/home/ann"}, "/home/ann/.cache/tardis-machine"),
        ("linux", {"HOME": "/home/ann", "XDG_CACHE_HOME": "/big/cache"}, "/big/cache/tardis-machine"),
        ("linux", {"HOME": "/home/ann", "XDG_CACHE_HOME": "relative"}, "/home/ann/.cache/tardis-machine"),
        ("linux", {"HOME": "/home/ann", "XDG_CACHE_HOME": ""}, "/home/ann/.cache/tardis-machine"),
        ("darwin", {"HOME": "/Users/ann", "XDG_CACHE_HOME": "/x"}, "/Users/ann/Library/Caches/tardis-machine"),
        ("win32", {"HOME": "/u/ann", "LOCALAPPDATA": "/u/ann/local"}, "/u/ann/local/tardis-machine/Cache"),
        ("win32", {"HOME": "/u/ann"}, "/u/ann/AppData/Local/tardis-machine/Cache"),
    ],
)
def test_the_cache_is_in_the_users_cache_folder(platform: str, environ: dict[str, str], expected: str) -> None:
    assert cache_dir(environ, platform) == Path(expected)


def test_the_server_has_its_cache_there() -> None:
    assert resolve([], {"HOME": "/home/ann", "XDG_CACHE_HOME": "/big/cache"}).cache_dir == Path("/big/cache/tardis-machine")


def test_state_is_in_the_users_state_folder() -> None:
    assert state_dir({"HOME": "/home/ann"}) == Path("/home/ann/.local/state/tardis-machine")
    assert state_dir({"XDG_STATE_HOME": "/state"}) == Path("/state/tardis-machine")
