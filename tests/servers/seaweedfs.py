"""S3 as SeaweedFS serves it: objects lie in files, and what was confirmed outlasts a kill."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path
from typing import Any

from .process import ServerProcess, free_port, http_status, installed

ACCESS_KEY, SECRET_KEY, REGION = "lake-access", "lake-secret", "us-east-1"
# What the parts of the server take beside S3's own port.
PORTS = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc", "s3.port.grpc")
OPTIONS = (
    "-ip=127.0.0.1",
    "-ip.bind=127.0.0.1",
    "-filer",
    "-s3",
    "-s3.config=identities.json",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-dir=data",
    "-volume.max=0",
    "-master.volumeSizeLimitMB=256",
    "-master.telemetry=false",
    "-master.electionTimeout=1s",
    "-master.heartbeatInterval=100ms",
)


class SeaweedServer(ServerProcess):
    name = "SeaweedFS"
    scheme = "http"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        # Each is free, and so is the one after it.
        self._ports = [port + second for port in (free_port() for _ in range(4)) for second in (0, 1)]

    def prepare(self) -> None:
        (self.folder / "data").mkdir()
        keys = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
        identity = {"name": "lake", "credentials": [keys], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
        (self.folder / "identities.json").write_text(json.dumps({"identities": [identity]}))

    def command(self) -> list[str]:
        program = installed(Path(sysconfig.get_path("scripts")) / "weed", "SeaweedFS")
        ports = [f"-{name}={port}" for name, port in zip(PORTS, self._ports, strict=False)]
        return [program, "-v=0", "-logtostderr", "server", *OPTIONS, f"-s3.port={self.port}", *ports]

    def answers(self) -> bool:
        # It listens before it can store anything.
        return http_status(self.port, "/") == 403 and http_status(self._ports[0], "/dir/assign") == 200

    def stop(self) -> None:
        """As a power cut: it takes half a minute to say good-bye to itself, and has nothing left to write."""
        self.kill()
        # Sockets of its own, which it makes anew at a start.
        for port in (self.port, *self._ports):
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)

    def client(self, port: int | None = None, **settings: Any) -> Any:
        """A client of Amazon's for it, or for a proxy in front of it on another port."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port or self.port}",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name=REGION,
            config=Config(retries={"max_attempts": 0}, **settings),
        )

    def lake_options(self, port: int | None = None) -> dict[str, str]:
        """What a lake has to be told to lie there."""
        endpoint = f"http://127.0.0.1:{port or self.port}"
        return {"endpoint": endpoint, "region": REGION, "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}

    def create_bucket(self, name: str) -> str:
        """Its name."""
        self.client().create_bucket(Bucket=name)
        return name
