"""One HTTP exchange with an endpoint, by libcurl: one time limit for all of it, connections kept for the next.

Sends what it is given to the address it is given and to nobody else: redirects are not followed, no `.netrc` is read.
Judges no answer and asks nothing twice; only a kept connection that turns out to have been closed meanwhile is replaced
by a new one.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Self

import certifi
import pycurl

from task_app import __version__

__all__ = ["Answer", "CallFailed", "HttpClient", "header_line"]

_AGENT = f"crafter-task-app/{__version__}"
_RETRY_AFTER = pycurl.RETRY_AFTER  # pyright: ignore[reportAttributeAccessIssue]
_LATE = pycurl.E_OPERATION_TIMEDOUT
_UNTRUSTED = pycurl.E_PEER_FAILED_VERIFICATION
_UNREACHABLE = frozenset(
    {
        pycurl.E_COULDNT_RESOLVE_PROXY,
        pycurl.E_COULDNT_RESOLVE_HOST,
        pycurl.E_COULDNT_CONNECT,
        pycurl.E_SSL_CONNECT_ERROR,
    }
)
_BROKEN = {
    pycurl.E_GOT_NOTHING: "closed without an answer",
    pycurl.E_RECV_ERROR: "closed while the answer was awaited",
    pycurl.E_SEND_ERROR: "closed while the request was sent",
    pycurl.E_PARTIAL_FILE: "closed in the middle of the answer",
}


class CallFailed(Exception):
    """No whole answer came; the message says why in words of our own. `late` is whether the time was up."""

    def __init__(self, message: str, *, late: bool = False) -> None:
        super().__init__(message)
        self.late = late


class Answer(NamedTuple):
    """What came back. `whole` is False where the body has more bytes than were wanted, or broke off in a refusal.

    retry_after_s  the pause its `Retry-After` header asks for, as seconds or until a date; 0 for none
    """

    status: int
    body: bytes
    whole: bool
    retry_after_s: float


class HttpClient:
    """Safe to use from many threads: a call takes an idle handle, with its open connections, or makes one.

    Proxies are those of the environment (`https_proxy`, `no_proxy` …) unless `proxies` is False; authorities are
    certifi's unless `SSL_CERT_FILE` or `SSL_CERT_DIR` names others. Usable as a context manager.
    """

    def __init__(self, *, proxies: bool = True) -> None:
        self._proxies = proxies
        self._authorities = os.environ.get("SSL_CERT_FILE") or certifi.where()
        self._folder = os.environ.get("SSL_CERT_DIR")
        self._idle: deque[pycurl.Curl] = deque()
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
        self, method: str, url: str, *, headers: Sequence[str], content: bytes | None, timeout_s: float, most: int
    ) -> Answer:
        """The answer, whatever its status, within `timeout_s`; at most `most` bytes of its body, decompressed.

        `method` is GET or POST, `headers` are lines such as "Accept: text/plain". Raises CallFailed.
        """
        handle = self._taken() or pycurl.Curl()
        try:
            self._prepare(handle, method, url, headers, content, timeout_s)
            return _performed(handle, timeout_s, most)
        finally:
            handle.reset()  # forgets body and address, not the connections
            self._idle.append(handle)
            if self._closed:
                self.close()

    def _taken(self) -> pycurl.Curl | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _prepare(
        self,
        handle: pycurl.Curl,
        method: str,
        url: str,
        headers: Sequence[str],
        content: bytes | None,
        timeout_s: float,
    ) -> None:
        handle.setopt(pycurl.URL, url)
        handle.setopt(pycurl.NOSIGNAL, 1)  # signals are the main thread's
        handle.setopt(pycurl.TIMEOUT_MS, max(1, int(1000 * timeout_s)))
        handle.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
        handle.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        handle.setopt(pycurl.ACCEPT_ENCODING, "gzip, deflate")
        handle.setopt(pycurl.USERAGENT, _AGENT)
        handle.setopt(pycurl.HTTPHEADER, [*headers, "Expect:"])  # no pause before a long body
        handle.setopt(pycurl.CAINFO, self._authorities)
        if self._folder:
            handle.setopt(pycurl.CAPATH, self._folder)
        if not self._proxies:
            handle.setopt(pycurl.PROXY, "")
        if method == "POST":
            handle.setopt(pycurl.POST, 1)
            handle.setopt(pycurl.POSTFIELDS, content or b"")


def header_line(name: str, value: str) -> str:
    """A header as `HttpClient.call` takes it. Raises ValueError for a value that would end it or is no ASCII."""
    if not (value.isascii() and value.isprintable()):
        raise ValueError(f"the value of header {name} is not printable ASCII")
    return f"{name}: {value}"


def _performed(handle: pycurl.Curl, timeout_s: float, most: int) -> Answer:
    body = bytearray()

    def take(part: bytes) -> int | None:
        body.extend(part)
        return 0 if len(body) > most else None  # 0 ends the exchange

    handle.setopt(pycurl.WRITEFUNCTION, take)
    failed: pycurl.error | None = None
    try:
        handle.perform()
    except pycurl.error as error:
        failed = error
    status, retry_after_s = handle.getinfo(pycurl.RESPONSE_CODE), float(handle.getinfo(_RETRY_AFTER))
    refused = status not in (0, 200)  # then the status is known, and what becomes of the words changes nothing
    if failed is not None and len(body) <= most and not refused:
        raise _failure(failed.args[0], timeout_s) from failed
    return Answer(status, bytes(body[:most]), failed is None, retry_after_s)


def _failure(code: int | str, timeout_s: float) -> CallFailed:
    """Why there is no answer; libcurl's own message may quote what a stranger sent."""
    if code == _LATE:
        return CallFailed(f"no whole answer within {timeout_s:.3g} s", late=True)
    if code == _UNTRUSTED:
        return CallFailed("it cannot be reached: its certificate is not trusted")
    if code in _UNREACHABLE:
        return CallFailed("it cannot be reached")
    return CallFailed(f"the connection broke ({_BROKEN.get(int(code), f'libcurl error {code}')})")
