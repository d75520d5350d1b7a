"""`scripts/schema`, in a copy of what it reads, under a path with a space."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTO = Path("schemas/proto/lakehouse/bronze/v1/normalized_event.proto")
GENERATED = Path("src/tardis_machine/generated")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "a clone"
    for folder in (Path("schemas"), GENERATED):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "schema", root / "scripts")
    (root / ".venv").symlink_to(ROOT / ".venv")
    git(root, "init", "--quiet", "--initial-branch=main")
    return root


def git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", root, *identity, *arguments], check=True, capture_output=True)


def commit(root: Path) -> None:
    git(root, "add", "schemas", "src", "scripts")
    git(root, "commit", "--quiet", "--message", "schema")


def schema(root: Path, command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([root / "scripts" / "schema", command], capture_output=True, text=True, check=False)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_what_is_committed_is_in_order(checkout: Path) -> None:
    result = schema(checkout, "check")
    assert result.returncode == 0, result.stderr
    assert "main has no schema yet" in result.stdout
    commit(checkout)
    result = schema(checkout, "check")
    assert (result.returncode, result.stdout) == (0, ""), result.stderr


def test_a_stale_file_is_reported_and_mended(checkout: Path) -> None:
    commit(checkout)
    edit(checkout / PROTO, "optional bool id_is_number = 20;", "optional bool id_is_number = 20;\n  optional string venue = 21;")
    stale = schema(checkout, "check")
    assert stale.returncode == 1
    assert stale.stderr == "schema: src/tardis_machine/generated is stale; run make schema and commit what it changes.\n"
    assert schema(checkout, "generate").returncode == 0
    assert schema(checkout, "check").returncode == 0
    assert "venue" in (checkout / GENERATED / "lakehouse/bronze/v1/normalized_event_pb2.pyi").read_text()


def test_a_file_that_nothing_generates_is_stale(checkout: Path) -> None:
    (checkout / GENERATED / "lakehouse" / "left_over.py").touch()
    assert "is stale" in schema(checkout, "check").stderr


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("optional string price_str = 2;", "optional string price_str = 25;"),
        ("optional string price_str = 2;", "optional bytes price_str = 2;"),
        ("  SIDE_SELL = 2;\n", ""),
    ],
)
def test_a_breaking_change_is_refused(checkout: Path, old: str, new: str) -> None:
    commit(checkout)
    edit(checkout / PROTO, old, new)
    result = schema(checkout, "generate")
    assert result.returncode == 1
    assert result.stderr.endswith(
        "schema: the schema breaks its consumers (against main): keep names, numbers and types, and add with new numbers.\n"
    )


def test_style_is_checked(checkout: Path) -> None:
    edit(checkout / PROTO, "optional string price_str = 2;", "optional   string price_str = 2;")
    assert "not formatted" in schema(checkout, "check").stderr
    edit(checkout / PROTO, "optional   string price_str = 2;", "optional string PriceStr = 2;")
    result = schema(checkout, "check")
    assert result.returncode != 0
    assert "should be lower_snake_case" in result.stdout


def test_usage(checkout: Path) -> None:
    result = schema(checkout, "mend")
    assert (result.returncode, result.stderr) == (1, "schema: expected 'generate' or 'check', got 'mend'.\n")
