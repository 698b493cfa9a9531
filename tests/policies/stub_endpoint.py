"""A chat-completions endpoint on 127.0.0.1 that answers as it is told, well or badly."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

__all__ = ["StubEndpoint"]

Behaviour = Callable[[BaseHTTPRequestHandler], None]
FIVE = ("move_right", "do", "move_left", "do", "noop")


class Received(NamedTuple):
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    body: Any
    client: Any = None
    method: str = "POST"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is nothing to report."""


class StubEndpoint:
    """Answers each request by the next planned behaviour, then by `otherwise`. Use as a context manager.

    With `tls` it is an https server.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.received: list[Received] = []
        self.otherwise: Behaviour = self.call(*FIVE)
        self._planned: deque[Behaviour] = deque()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                headers = {name.lower(): value for name, value in self.headers.items()}
                stub._next(Received(self.path, headers, body, self.client_address))(self)

            def do_GET(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                stub._next(Received(self.path, headers, None, self.client_address, "GET"))(self)

            def log_message(self, format: str, *args: Any) -> None:
                """Quiet."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def plan(self, *behaviours: Behaviour) -> None:
        """What the next requests get, one each."""
        with self._lock:
            self._planned.extend(behaviours)

    def _next(self, received: Received) -> Behaviour:
        with self._lock:
            self.received.append(received)
            return self._planned.popleft() if self._planned else self.otherwise

    # -- behaviours --------------------------------------------------------------------------

    @staticmethod
    def raw(body: bytes, status: int = 200, **headers: str) -> Behaviour:
        """A whole answer of these bytes; `retry_after="1"` is the header Retry-After."""

        def send(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(status)
            for name, value in headers.items():
                handler.send_header(name.replace("_", "-"), value)
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)

        return send

    @classmethod
    def status(cls, status: int, **headers: str) -> Behaviour:
        """An error answer that repeats a key, as some providers' do."""
        return cls.raw(b'{"error": {"message": "Incorrect key provided: sk-secret"}}', status, **headers)

    @classmethod
    def completion(cls, message: dict[str, Any], finish_reason: str | None = "tool_calls", **more: Any) -> Behaviour:
        """A chat completion with this message."""
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
        return cls.raw(json.dumps({"id": "cmpl-1", "model": "stub-1", "choices": [choice], **more}).encode())

    @classmethod
    def call(cls, *actions: str) -> Behaviour:
        """One legal `interact_many` call."""
        function = {"name": "interact_many", "arguments": json.dumps({"actions": actions})}
        usage = {"prompt_tokens": 11, "completion_tokens": 7}
        return cls.completion({"tool_calls": [{"id": "a", "type": "function", "function": function}]}, usage=usage)

    @staticmethod
    def reset(handler: BaseHTTPRequestHandler) -> None:
        """Break the connection off."""
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.connection.close()
        handler.close_connection = True

    def hang(self, handler: BaseHTTPRequestHandler) -> None:
        """Say nothing until the endpoint is closed."""
        self._closing.wait(60)
        handler.close_connection = True

    def slow(self, seconds: float, then: Behaviour) -> Behaviour:
        """`then`, after a time."""

        def send(handler: BaseHTTPRequestHandler) -> None:
            if self._closing.wait(seconds):
                handler.close_connection = True
            else:
                then(handler)

        return send

    def trickle(self, handler: BaseHTTPRequestHandler) -> None:
        """An answer that goes on for five seconds, a byte at a time."""
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        for _ in range(250):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            if self._closing.wait(0.02):
                break
        handler.close_connection = True

    @staticmethod
    def refusal(status: int, message: str, **error: Any) -> Behaviour:
        """An error in the OpenAI form; `error` are further fields of it, such as code and param."""
        body = {"error": {"message": message, "type": "invalid_request_error", **error}}
        return StubEndpoint.raw(json.dumps(body).encode(), status)

    @staticmethod
    def stream(*chunks: Any, end: bytes = b"data: [DONE]\n\n") -> Behaviour:
        """Server-sent events, although none were asked for."""
        lines = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
        return StubEndpoint.raw(b": begin\n\n" + lines + end, content_type="text/event-stream")

    @staticmethod
    def reset_mid_body(handler: BaseHTTPRequestHandler) -> None:
        """Promise an answer and break off in the middle of it."""
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b'{"choices": [')
        handler.wfile.flush()
        StubEndpoint.reset(handler)

    @staticmethod
    def hang_in_refusal(handler: BaseHTTPRequestHandler) -> None:
        """A 400 whose body never ends."""
        handler.send_response(400)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"{")
        handler.wfile.flush()
        time.sleep(0.6)
        handler.close_connection = True
