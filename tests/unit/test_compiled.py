"""What runs compiled: all that can, and never what was compiled from another text."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

import tardis_machine
from tardis_machine._compiled import FOLDER, file_name, sources
from tardis_machine.sample.venues import VENUES
from tests.compiled_or_not import import_compiled

PACKAGE = Path(tardis_machine.__file__).parent
ROOT = Path(__file__).parents[2]
MODULES = [f"tardis_machine.{name}" for name in sources(PACKAGE)]
WHERE = "from importlib import import_module\nfor name in {names!r}: print(import_module(name).__spec__.origin)"


def run(*command: str, package: Path = PACKAGE, compiled: str = "") -> list[str]:
    """The lines that a Python prints which has the package of that folder."""
    environ = {**os.environ, "PYTHONPATH": str(package.parent), "TARDIS_MACHINE_COMPILED": compiled}
    answer = subprocess.run([sys.executable, *command], cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.splitlines()


def find(names: list[str], package: Path = PACKAGE, compiled: str = "") -> dict[str, Path]:
    """The files that modules are imported from."""
    return dict(zip(names, map(Path, run("-c", WHERE.format(names=names), package=package, compiled=compiled)), strict=True))


def test_everything_that_can_runs_compiled() -> None:
    expected = [PACKAGE / FOLDER / file_name(PACKAGE, name, source) for name, source in sources(PACKAGE).items()]
    assert list(find(MODULES).values()) == expected
    assert {"tardis_machine.exchanges.bitmex", "tardis_machine.exchanges.okex.v5", "tardis_machine.bronze.wire_compiled"} <= set(
        MODULES
    )


def test_the_environment_makes_everything_run_as_python() -> None:
    texts = [name for name, source in zip(MODULES, sources(PACKAGE).values(), strict=True) if source.suffix == ".py"]
    assert [file.suffix for file in find(texts, compiled="0").values()] == [".py"] * len(texts)
    code = "from tardis_machine.exchanges._parsing import to_number; print(to_number.__module__)"
    assert run("-c", code, compiled="0") == ["tardis_machine.exchanges._parsing"]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the package, as somebody edits it."""
    return Path(copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=ignore_patterns("__pycache__")))


def test_a_module_that_was_edited_runs_as_python(copied: Path) -> None:
    edited = copied / "exchanges" / "bitmex.py"
    edited.write_text(f"{edited.read_text()}\nEXCHANGES = ()\n")
    found = find(MODULES, copied)
    assert found.pop("tardis_machine.exchanges.bitmex") == edited
    assert {file.parent for file in found.values()} == {copied / FOLDER}
    assert run("-c", "from tardis_machine.exchanges.bitmex import EXCHANGES; print(EXCHANGES)", package=copied) == ["()"]


def test_a_change_of_the_shared_declarations_is_one_of_all_that_is_written_in_cython(copied: Path) -> None:
    with copied.joinpath("_declarations.pxd").open("a") as declarations:
        declarations.write("# changed\n")
    code = (
        "from tardis_machine.bronze import sealing; from tardis_machine.exchanges import bitmex, _feeding;"
        "print(sealing.seal_messages.__module__, _feeding.feed_messages.__module__, bitmex.__file__)"
    )
    sealing, feeding, bitmex = run("-c", code, package=copied)[0].split()
    assert (sealing, feeding) == ("tardis_machine.bronze.sealing", "tardis_machine.exchanges._feeding")
    assert Path(bitmex).parent == copied / FOLDER


def test_without_the_text_nothing_is_taken_for_it(copied: Path) -> None:
    copied.joinpath("bronze", "sealing_compiled.pyx").unlink()
    code = "from tardis_machine.bronze import sealing; print(sealing.seal_messages.__module__)"
    assert run("-c", code, package=copied) == ["tardis_machine.bronze.sealing"]


def test_exchanges_give_the_same_compiled_or_not() -> None:
    compiled, as_python = (run("-m", "tests.exchanges.print_normalized", compiled=choice) for choice in ("1", "0"))
    assert [line.partition(" ")[0] for line in compiled] == sorted(VENUES)
    assert compiled == as_python


def test_what_is_compiled_as_it_is_behaves_as_python_does() -> None:
    (bitmex,) = import_compiled("tardis_machine.exchanges.bitmex")
    assert bitmex.__spec__.origin.endswith((".so", ".pyd"))
    mapper = bitmex.BitmexTradeMapper("bitmex")
    with pytest.raises(KeyError, match="data") as raised:
        mapper.map({}, "2020-01-01T00:00:00.000000Z")
    *_, last = traceback.extract_tb(raised.value.__traceback__)
    assert last.name.endswith("BitmexTradeMapper.map")
    assert last.line == 'for trade in message["data"]'
    assert bitmex.BitmexTradeMapper.map.__annotations__["return"] == "list[Trade]"


def test_a_mapper_can_be_pickled() -> None:
    code = (
        "import pickle; from tardis_machine.exchanges.bitmex import BitmexBookChangeMapper as Mapper;"
        "print(pickle.loads(pickle.dumps(Mapper('bitmex'))).exchange)"
    )
    assert run("-c", code) == ["bitmex"]
