"""What a console consumer prints, decoded with `buf` as docs/clients.md says."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

from google.protobuf.json_format import Parse

from tardis_machine.generated.lakehouse.bronze.v1.normalized_event_pb2 import NormalizedEvent
from tests.servers.process import ROOT, installed

__all__ = ["decode_with_buf", "shell"]

CONVERT = (
    "convert",
    "schemas/proto",
    "--type",
    "lakehouse.bronze.v1.NormalizedEvent",
    "--from",
    "-#format=binpb",
    "--to",
    "-#format=json",
)


def shell(command: str, **environ: str) -> bytes:
    """What a line of shell prints; it must end well."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], cwd=ROOT, capture_output=True, check=False, env=environ or None
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def decode_with_buf(value: bytes) -> NormalizedEvent:
    """The event, by way of buf's JSON."""
    buf = installed(Path(sysconfig.get_path("scripts")) / "buf", "buf")
    done = subprocess.run([buf, *CONVERT], cwd=ROOT, input=value, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return Parse(done.stdout.decode(), NormalizedEvent())
