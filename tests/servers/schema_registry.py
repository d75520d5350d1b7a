"""A stand-in of a schema registry's REST calls: registers and looks up Protobuf schemas, behind a password if told."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

from google.protobuf.descriptor_pb2 import FileDescriptorProto


class SchemaRegistryServer:
    """Ids count from `first_id`, one for each distinct schema; `subjects` has what was registered, `asked` each call's path."""

    def __init__(self, *, login: str | None = None, first_id: int = 1) -> None:
        self.subjects: dict[str, list[str]] = {}
        self.ids: dict[str, int] = {}
        self.asked: list[str] = []
        self.fails_with: int | None = None
        self._first_id = first_id
        self._authorization = None if login is None else f"Basic {base64.b64encode(login.encode()).decode()}"
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = outer._answer(self.path, self.headers.get("Authorization"), body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def _answer(self, path: str, authorization: str | None, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.asked.append(path)
        if self.fails_with is not None:
            return self.fails_with, {"error_code": self.fails_with, "message": "told to fail"}
        if authorization != self._authorization:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        _, _, subject, *rest = unquote(path).split("/")
        schema = body["schema"]
        described = FileDescriptorProto.FromString(base64.b64decode(schema))
        if body["schemaType"] != "PROTOBUF" or not described.message_type:
            return 422, {"error_code": 42201, "message": "Invalid schema"}
        if rest == ["versions"]:
            self.subjects.setdefault(subject, []).append(schema)
            return 200, {"id": self.ids.setdefault(schema, self._first_id + len(self.ids))}
        if schema not in self.subjects.get(subject, []):
            return 404, {"error_code": 40403, "message": "Schema not found"}
        return 200, {"subject": subject, "id": self.ids[schema], "version": 1, "schema": schema}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
