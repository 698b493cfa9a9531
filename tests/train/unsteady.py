"""What stands before a task app and loses some of its answers, for the tests of hosted training."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from tests.policies.stub_endpoint import Behaviour

__all__ = ["unsteady"]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that was broken off is nothing to report."""


@contextmanager
def unsteady(url: str, lose: Behaviour, *members: tuple[int, int], times: int) -> Iterator[str]:
    """The address of a server that passes every request on to `url`, but lets `lose` answer the first `times` rollouts
    of each of `members` (seed, member)."""
    lost: dict[tuple[int, int], int] = dict.fromkeys(members, times)
    guard = threading.Lock()

    def is_lost(body: Any) -> bool:
        place = (body["env"]["seed"], body["member"])
        with guard:
            left = lost.get(place, 0)
            lost[place] = left - 1
        return left > 0

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self, method: str) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            if self.path == "/rollout" and is_lost(httpx.Response(200, content=body).json()):
                lose(self)
                return
            headers = {name: self.headers[name] for name in ("X-API-Key", "Content-Type") if name in self.headers}
            answer = httpx.request(method, url + self.path, content=body, headers=headers, timeout=60, trust_env=False)
            self.send_response(answer.status_code)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def do_GET(self) -> None:
            self.pass_on("GET")

        def do_POST(self) -> None:
            self.pass_on("POST")

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
