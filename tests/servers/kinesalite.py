"""Kinesis as kinesalite plays it; what it holds is gone with the process."""

from __future__ import annotations

import json
import shutil

from .process import TOOLS, ServerMissingError, ServerProcess, http_status, installed

# Streams are made and split without the pauses that Amazon takes for it.
OPTIONS = {"createStreamMs": 5, "deleteStreamMs": 5, "updateStreamMs": 5}


class KinesaliteServer(ServerProcess):
    name = "kinesalite"
    scheme = "http"

    def command(self) -> list[str]:
        node = shutil.which("node")
        if node is None:
            raise ServerMissingError("This test needs Node, which is not on the PATH: run `make setup`.")
        module = installed(TOOLS / "npm" / "node_modules" / "kinesalite", "kinesalite")
        # Its own command line can't be told to stay on this machine.
        return [node, "-e", f"require({json.dumps(module)})({json.dumps(OPTIONS)}).listen({self.port}, '127.0.0.1')"]

    def answers(self) -> bool:
        return http_status(self.port, "/") > 0
