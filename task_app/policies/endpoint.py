"""One JSON endpoint over a shared client: bounded waits, retries with back-off, and why it failed.

Keys go to the host that is asked and to no other; redirects are not followed. What an answer says is for the caller
to read: this knows no wire form.

Asked again, with back-off and jitter: HTTP 408, 409, 425, 429 and 5xx, connections that are refused or break, answers
that come late or cannot be read. Never asked again: every other status. A pause asked for by `Retry-After` (seconds, or
a date, RFC 9110 section 10.2.3) is kept; one that ends after the deadline ends the call at once.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, TypeVar

import stamina

from task_app.core.errors import PolicyError
from task_app.policies.http_client import Answer, CallFailed, HttpClient, header_line

__all__ = ["MAX_ANSWER_BYTES", "Endpoint", "Fault", "encode_json", "is_worth_another_try", "read_json"]

MAX_ANSWER_BYTES = 8_000_000
_RETRIED = frozenset({408, 409, 425, 429})
_WHY = {401: "it refused the key", 403: "it refused the key", 404: "it knows no such address or model"}
_REDIRECTS = range(300, 400)
_QUOTED_BYTES = 400
_REFUSAL_BYTES = 64_000

T = TypeVar("T")
Refused = Callable[[int, bytes], Exception | None]
"""Called with the status and the body of a refusal; what it returns is raised instead of the usual error."""

# Retries are announced where logging is set up, and not on a bare terminal.
logging.getLogger("stamina").addHandler(logging.NullHandler())


class Fault(Exception):
    """A fault worth another try, after `wait_s` where the endpoint asked for a pause."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class Endpoint:
    """Asks one endpoint; safe to use from many threads."""

    def __init__(
        self,
        client: HttpClient,
        name: str,
        api_key: str = "",
        timeout_s: float = 60.0,
        tries: int = 3,
        quoting: bool = False,
    ) -> None:
        """`name` is what messages call it, `timeout_s` the seconds of one request, `quoting` whether a refusal's own
        words are told: only for servers that echo no keys."""
        self._client, self._name = client, name
        self._timeout_s, self._tries, self._quoting = timeout_s, tries, quoting
        key = [header_line("Authorization", f"Bearer {api_key}")] if api_key else []
        self._headers = ["Content-Type: application/json", *key]

    def ask(
        self,
        method: str,
        url: str,
        body: Any,
        read: Callable[[bytes], T],
        *,
        deadline: float,
        retry: bool = False,
        headers: Mapping[str, str] | None = None,
        refused: Refused | None = None,
    ) -> T:
        """What `read` makes of the answer's bytes; it raises Fault for an answer worth another try.

        `body` is JSON values, None for none, or bytes that are JSON already. `deadline` is a time of `time.monotonic`
        for all tries together. Raises PolicyError naming endpoint and cause; `retry` says whether another call may
        help after faults. `headers` are sent besides the usual ones.
        """
        content = body if isinstance(body, bytes | None) else encode_json(body)
        sent = [*self._headers, *(header_line(name, value) for name, value in (headers or {}).items())]
        tries = 0

        def wait_before_next(error: Exception) -> float | bool:
            """Seconds to wait, growing with each try; False when another is not worth it or comes too late."""
            if not isinstance(error, Fault):
                return False
            wait_s = max(error.wait_s, 0.1 * 2**tries * random.uniform(0.5, 1.0))
            return wait_s if time.monotonic() + wait_s < deadline else False

        try:
            for attempt in stamina.retry_context(on=wait_before_next, attempts=self._tries, timeout=None):
                tries += 1
                with attempt:
                    return read(self._send(method, url, content, sent, deadline, refused))
        except Fault as error:
            raise PolicyError(f"{self._name}: {error}{_tried(error, tries, deadline)}", retryable=retry) from error
        raise AssertionError("stamina makes at least one attempt")

    def _send(
        self,
        method: str,
        url: str,
        content: bytes | None,
        headers: Sequence[str],
        deadline: float,
        refused: Refused | None,
    ) -> bytes:
        """The whole answer, within `timeout_s` and before the deadline."""
        timeout_s = max(0.001, min(self._timeout_s, deadline - time.monotonic()))
        try:
            answer = self._client.call(
                method, url, headers=headers, content=content, timeout_s=timeout_s, most=partial(self._wanted, refused)
            )
        except CallFailed as error:
            raise Fault(str(error)) from error
        if answer.status != 200:
            raise self._error_of(answer, refused)
        if not answer.whole:
            raise Fault(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        return answer.body

    def _wanted(self, refused: Refused | None, status: int) -> int:
        """How many bytes of an answer are read, by its status."""
        if status == 200:
            return MAX_ANSWER_BYTES
        heard = self._quoting or (refused is not None and not is_worth_another_try(status))
        return _REFUSAL_BYTES if heard else 0

    def _error_of(self, answer: Answer, refused: Refused | None) -> Exception:
        """What to raise for a status that is no success."""
        status = answer.status
        said = f", it says {answer.body[:_QUOTED_BYTES].decode('utf-8', 'replace')!r}" if self._quoting else ""
        if is_worth_another_try(status):
            return Fault(f"HTTP {status}{said}", _seconds(answer.retry_after))
        if refused is not None and (special := refused(status, answer.body)) is not None:
            return special
        why = "it redirects, which is not followed" if status in _REDIRECTS else _WHY.get(status)
        return PolicyError(f"{self._name}: HTTP {status}, {why or 'it refused the request'}{said}", retryable=False)


def is_worth_another_try(status: int) -> bool:
    """Whether the same request may succeed later."""
    return status >= 500 or status in _RETRIED


def encode_json(value: Any) -> bytes:
    """JSON values as bytes, without spaces; NaN and infinity are refused with ValueError."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def read_json(answer: bytes) -> Any:
    """An answer as JSON values. Raises Fault for anything else."""
    try:
        return json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise Fault("the answer is not JSON") from error


def _tried(error: Fault, tries: int, deadline: float) -> str:
    """How often it was tried, and why not again where the endpoint asked for too long a pause."""
    times = "once" if tries == 1 else f"{tries} times"
    left_s = max(0.0, deadline - time.monotonic())
    if error.wait_s < left_s or not error.wait_s:
        return f" (tried {times})"
    return f" (tried {times}; it asks to wait {error.wait_s:.0f} s, but only {left_s:.3g} s are left)"


def _seconds(retry_after: str) -> float:
    """The pause a `Retry-After` header asks for, as seconds or until a date; 0 where it says neither."""
    if retry_after.isdecimal():
        return float(retry_after[:12])
    try:
        until = parsedate_to_datetime(retry_after)
    except ValueError:
        return 0.0
    return max(0.0, (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
