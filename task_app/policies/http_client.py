"""One HTTP exchange with an endpoint, by libcurl: one time limit for all of it, connections kept for the next.

Sends what it is given to the address it is given and to nobody else: redirects are not followed, no `.netrc` is read.
Judges no answer and sends no body twice.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, NamedTuple, Self

import certifi
import pycurl

from task_app import __version__
from task_app.core.threads import in_daemon_thread

__all__ = ["Answer", "CallFailed", "HttpClient", "header_line"]

_AGENT = f"CrafterTaskApp/{__version__}"
_IDLE_S = 60.0
"""A connection that was not used for so long is closed, when another call ends."""
_LATE = pycurl.E_OPERATION_TIMEDOUT
_WHY = {
    pycurl.E_PEER_FAILED_VERIFICATION: "it cannot be reached: its certificate is not trusted",
    pycurl.E_SSL_CACERT_BADFILE: "it cannot be reached: the authorities of SSL_CERT_FILE cannot be read",
    pycurl.E_COULDNT_RESOLVE_PROXY: "it cannot be reached: its proxy has no such name",
    pycurl.E_COULDNT_RESOLVE_HOST: "it cannot be reached",
    pycurl.E_COULDNT_CONNECT: "it cannot be reached",
    pycurl.E_SSL_CONNECT_ERROR: "it cannot be reached",
    pycurl.E_GOT_NOTHING: "the connection broke (closed without an answer)",
    pycurl.E_RECV_ERROR: "the connection broke (closed while the answer was awaited)",
    pycurl.E_SEND_ERROR: "the connection broke (closed while the request was sent)",
    pycurl.E_SEND_FAIL_REWIND: "the connection broke (closed without an answer)",
    pycurl.E_BAD_CONTENT_ENCODING: "its answer cannot be unpacked",
    pycurl.E_PARTIAL_FILE: "the connection broke (closed in the middle of the answer)",
}
"""What libcurl's own messages say too, but those may quote what a stranger sent."""

Most = Callable[[int], int]
"""How many bytes of a body are wanted, by the answer's status."""


class CallFailed(Exception):
    """No whole answer came; the message says why in words of our own."""


class Answer(NamedTuple):
    """What came back. `whole` is False where the body has more bytes than were wanted, or broke off in a refusal."""

    status: int
    body: bytes
    whole: bool
    retry_after: str


class HttpClient:
    """Safe to use from many threads: a call takes the handle used last, with its open connection, or makes one.

    Proxies are those of the environment (`https_proxy`, `no_proxy` …) unless `proxies` is False; authorities are
    certifi's unless `SSL_CERT_FILE` or `SSL_CERT_DIR` names others. Usable as a context manager.
    """

    def __init__(self, *, proxies: bool = True) -> None:
        self._folder = os.environ.get("SSL_CERT_DIR") or None
        self._file = os.environ.get("SSL_CERT_FILE") or (None if self._folder else certifi.where())
        self._settings: list[tuple[int, Any]] = [
            (pycurl.NOSIGNAL, 1),  # signals are the main thread's
            (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1),
            (pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS),
            (pycurl.ACCEPT_ENCODING, "gzip, deflate"),
            (pycurl.USERAGENT, _AGENT),
            *((option, self._file) for option in (pycurl.CAINFO, pycurl.PROXY_CAINFO)),
            *((option, self._folder) for option in (pycurl.CAPATH, pycurl.PROXY_CAPATH)),
            *([] if proxies else [(pycurl.PROXY, "")]),
        ]
        """Of every call; None is none, not libcurl's own default."""
        self._idle: deque[tuple[pycurl.Curl, float]] = deque()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the kept connections; those of calls still running are closed when they end."""
        self._closed = True
        while (handle := self._taken()) is not None:
            handle.close()

    def call(
        self, method: str, url: str, *, headers: Sequence[str], content: bytes | None, timeout_s: float, most: Most
    ) -> Answer:
        """The answer, whatever its status, within `timeout_s`.

        `method` is GET or POST, `headers` are lines such as "Accept: text/plain". Raises CallFailed. A signal that
        the main thread gets is handled at once: the call then goes on in a thread that nobody waits for.
        """
        if threading.current_thread() is threading.main_thread():
            return in_daemon_thread("http-call", self._call, method, url, headers, content, timeout_s, most).result()
        return self._call(method, url, headers, content, timeout_s, most)

    def _call(
        self, method: str, url: str, headers: Sequence[str], content: bytes | None, timeout_s: float, most: Most
    ) -> Answer:
        handle = self._taken() or pycurl.Curl()
        try:
            self._prepare(handle, method, url, headers, content, timeout_s)
            return _Exchange(most).performed(handle, timeout_s)
        finally:
            handle.reset()  # forgets body and address, not the connections
            self._give_back(handle)

    def _taken(self) -> pycurl.Curl | None:
        try:
            return self._idle.pop()[0]
        except IndexError:
            return None

    def _give_back(self, handle: pycurl.Curl) -> None:
        now = time.monotonic()
        self._idle.append((handle, now))
        try:
            while self._closed or self._idle[0][1] < now - _IDLE_S:
                self._idle.popleft()[0].close()
        except IndexError:  # another thread was faster
            pass

    def _prepare(
        self,
        handle: pycurl.Curl,
        method: str,
        url: str,
        headers: Sequence[str],
        content: bytes | None,
        timeout_s: float,
    ) -> None:
        for option, value in self._settings:
            handle.setopt(option, value)
        handle.setopt(pycurl.URL, url)
        handle.setopt(pycurl.HTTPHEADER, [*headers, "Expect:"])  # no pause before a long body
        for limit in (pycurl.TIMEOUT_MS, pycurl.CONNECTTIMEOUT_MS):
            handle.setopt(limit, max(1, int(1000 * timeout_s)))
        if method == "POST":
            # Read, not handed over: libcurl would send it again by itself where a kept connection took it and closed.
            handle.setopt(pycurl.POST, 1)
            handle.setopt(pycurl.POSTFIELDSIZE_LARGE, len(content or b""))
            handle.setopt(pycurl.READFUNCTION, BytesIO(content or b"").read)


class _Exchange:
    """What libcurl tells of one answer, as it comes; ends it once no more is wanted."""

    def __init__(self, most: Most) -> None:
        self._most = most
        self._status, self._retry_after, self._body, self._wanted = 0, "", bytearray(), 0

    def performed(self, handle: pycurl.Curl, timeout_s: float) -> Answer:
        """The answer. Raises CallFailed where none came whole, unless its status is all that matters."""
        handle.setopt(pycurl.HEADERFUNCTION, self._head)
        handle.setopt(pycurl.WRITEFUNCTION, self._take)
        failed: pycurl.error | None = None
        try:
            handle.perform()
        except pycurl.error as error:
            failed = error
        enough = len(self._body) > self._wanted or self._status not in (0, 200)
        if failed is not None and not enough:
            raise _failure(failed.args[0], timeout_s) from failed
        return Answer(self._status, bytes(self._body[: self._wanted]), failed is None, self._retry_after)

    def _head(self, line: bytes) -> int | None:
        """One line of the head; those of informational answers come first."""
        if line.startswith(b"HTTP/"):
            status = int(line.split()[1])
            self._status = status if status >= 200 else 0
        elif line[:12].lower() == b"retry-after:":
            self._retry_after = line[12:].decode("latin-1").strip()
        elif not line.strip() and self._status:
            self._wanted = self._most(self._status)
            return None if self._wanted else -1  # -1 ends the exchange
        return None

    def _take(self, part: bytes) -> int | None:
        self._body.extend(part)
        return -1 if len(self._body) > self._wanted else None


def header_line(name: str, value: str) -> str:
    """A header as `HttpClient.call` takes it. Raises ValueError for a value that is empty or not printable ASCII."""
    if not (value and value.isascii() and value.isprintable()):
        raise ValueError(f"the value of header {name} is empty or not printable ASCII")
    return f"{name}: {value}"


def _failure(code: int | str, timeout_s: float) -> CallFailed:
    if code == _LATE:
        return CallFailed(f"no whole answer within {timeout_s:.3g} s")
    return CallFailed(_WHY.get(int(code), f"the connection broke (libcurl error {code})"))
