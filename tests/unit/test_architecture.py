"""The house is as ARCHITECTURE.md says: every room is named there, and a noun means one thing."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import tardis_machine

PACKAGE = Path(tardis_machine.__file__).parent
HOUSE = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text()


def test_every_room_is_named() -> None:
    rooms = [f"`{path.name}/`" for path in PACKAGE.iterdir() if (path / "__init__.py").exists()]
    leaves = [path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("_")]
    assert [room for room in rooms if room not in HOUSE] == []
    assert [leaf for leaf in leaves if f"`{leaf}`" not in HOUSE and f"`{leaf}.py`" not in HOUSE] == []


def test_every_room_says_what_it_is_for() -> None:
    rooms = [path for path in PACKAGE.rglob("__init__.py") if "generated" not in path.parts]
    assert [str(path) for path in rooms if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_no_two_classes_have_one_name() -> None:
    modules = [ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py") if "generated" not in path.parts]
    names = Counter(node.name for module in modules for node in module.body if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1 and not name.startswith("_")] == []
