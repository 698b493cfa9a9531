"""One JSON endpoint over a pooled client: bounded waits, retries with back-off, and why it failed.

Keys go to the host that is asked and to no other; redirects are not followed. What an answer says is for the caller
to read: this knows no wire form.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import stamina

from task_app.core.errors import PolicyError

__all__ = ["MAX_ANSWER_BYTES", "Endpoint", "Fault", "read_json"]

MAX_ANSWER_BYTES = 8_000_000
_RETRIED = frozenset({408, 409, 425, 429})
_WHY = {401: "it refused the key", 403: "it refused the key", 404: "it knows no such address or model"}
_QUOTED_BYTES = 400

T = TypeVar("T")

# Retries are announced where logging is set up, and not on a bare terminal.
logging.getLogger("stamina").addHandler(logging.NullHandler())


class Fault(Exception):
    """A fault worth another try, after `wait_s` where the endpoint asked for a pause."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How to ask. Safe to use from many threads.

    name       what messages call it
    timeout_s  seconds of one request
    quoting    whether a refusal's own words are told; only for servers that echo no keys
    """

    client: httpx.Client
    name: str
    api_key: str = ""
    timeout_s: float = 60.0
    tries: int = 3
    quoting: bool = False

    def ask(
        self,
        method: str,
        url: httpx.URL,
        body: Any,
        read: Callable[[bytes], T],
        *,
        deadline: float,
        retry: bool = False,
    ) -> T:
        """What `read` makes of the answer's bytes; it raises Fault for an answer worth another try.

        `deadline` is a time of `time.monotonic` for all tries together. Raises PolicyError naming endpoint and cause;
        `retry` says whether another call may help after faults.
        """
        tries = 0

        def wait_before_next(error: Exception) -> float | bool:
            """Seconds to wait, growing with each try; False when another is not worth it or comes too late."""
            if not isinstance(error, Fault):
                return False
            wait_s = max(error.wait_s, 0.1 * 2**tries * random.uniform(0.5, 1.0))
            return wait_s if time.monotonic() + wait_s < deadline else False

        try:
            for attempt in stamina.retry_context(on=wait_before_next, attempts=self.tries, timeout=None):
                tries += 1
                with attempt:
                    return read(self._send(method, url, body, deadline))
        except Fault as error:
            times = "once" if tries == 1 else f"{tries} times"
            raise PolicyError(f"{self.name}: {error} (tried {times})", retryable=retry) from error
        raise AssertionError("stamina makes at least one attempt")

    def _send(self, method: str, url: httpx.URL, body: Any, deadline: float) -> bytes:
        """The whole answer, within `timeout_s` and before the deadline."""
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        timeout_s = max(0.001, min(self.timeout_s, deadline - time.monotonic()))
        end = time.monotonic() + timeout_s
        late = f"no whole answer within {timeout_s:.3g} s"
        try:
            with self.client.stream(method, url, json=body, headers=headers, timeout=timeout_s) as response:
                self._check_status(response)
                answer = bytearray()
                for part in response.iter_bytes():
                    answer += part
                    if time.monotonic() > end:
                        raise Fault(late)
                    if len(answer) > MAX_ANSWER_BYTES:
                        raise Fault(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
            return bytes(answer)
        except httpx.TimeoutException as error:
            raise Fault(late) from error
        except httpx.ConnectError as error:
            raise Fault("it cannot be reached") from error
        except httpx.HTTPError as error:
            raise Fault(f"the connection broke ({type(error).__name__})") from error

    def _check_status(self, response: httpx.Response) -> None:
        status = response.status_code
        if status == 200:
            return
        said = f", it says {self._words(response)!r}" if self.quoting else ""
        if status >= 500 or status in _RETRIED:
            raise Fault(f"HTTP {status}{said}", _seconds(response.headers.get("retry-after", "")))
        why = _WHY.get(status, "it refused the request")
        raise PolicyError(f"{self.name}: HTTP {status}, {why}{said}", retryable=False)

    @staticmethod
    def _words(response: httpx.Response) -> str:
        """The beginning of an answer."""
        said = b""
        for part in response.iter_bytes():
            said += part
            if len(said) > _QUOTED_BYTES:
                break
        return said[:_QUOTED_BYTES].decode("utf-8", "replace")


def read_json(answer: bytes) -> Any:
    """An answer as JSON values. Raises Fault for anything else."""
    try:
        return json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise Fault("the answer is not JSON") from error


def _seconds(retry_after: str) -> float:
    """The pause a `Retry-After` header asks for; 0 where it names a date or nothing."""
    return float(retry_after) if retry_after.isdecimal() else 0.0
