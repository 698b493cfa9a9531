"""The calls to a training service. Keeps no state but a connection; prints nothing, decides nothing about a job.

Every call has a deadline. A call that can be repeated is, while nobody answers or the service is busy (429 and 503,
`Retry-After` honoured): reading, cancelling and starting always can, a job is posted under an idempotency key, and a
file is kept under its hash.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import httpx

from task_app.core.errors import ConfigError, PolicyError
from task_app.http.auth import is_loopback
from task_app.rollout.redirects import RedirectRefused, followed

__all__ = ["JobsClient", "Kind", "Unavailable", "api_root", "is_local", "pauses"]

Kind = Literal["rl", "sft"]
_PATHS: Mapping[Kind, str] = {"rl": "/rl/jobs", "sft": "/learning/jobs"}
_UPLOAD_S = 3_600.0
"""How long an upload that is under way may take; nobody is asked again for that long."""
_LONGEST_RETRY_S = 300.0
_SHORTEST_S = 0.1


class Unavailable(PolicyError):
    """Nobody answers, or the service is busy: asking again can help. `wait_s` is how long it asked to be left alone."""

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class JobsClient:
    """The service at `backend` (`…/api`). `timeout_s` bounds one call, its repetitions included.

    Raises ConfigError for a `backend` that is no http(s) address; its methods raise PolicyError when the service
    refuses, naming status, message and field, and Unavailable when the deadline has passed.
    """

    def __init__(self, backend: str, *, api_key: str = "", timeout_s: float = 60.0) -> None:
        self.root, self._timeout_s = api_root(backend), timeout_s
        headers = {"X-API-Key": api_key.strip()} if api_key.strip() else {}
        self._http = httpx.Client(headers=headers, trust_env=not is_local(backend))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.close()

    def upload(self, path: Path) -> dict[str, Any]:
        """Send a file of JSON lines; it is checked there line by line. Raises ConfigError when it cannot be read."""
        try:
            with path.open("rb") as file:
                form = {"files": {"file": (path.name, file)}, "data": {"purpose": "fine-tune"}}
                return self._call("POST", "/learning/files", request_s=_UPLOAD_S, rewind=lambda: file.seek(0), **form)
        except OSError as error:
            raise ConfigError(f"the data {path} cannot be read: {error}", field="dataset") from error

    def file(self, file_id: str) -> dict[str, Any]:
        """What is known of a file."""
        return self._call("GET", f"/learning/files/{file_id}")

    def create(self, kind: Kind, body: Mapping[str, Any], idempotency: str) -> dict[str, Any]:
        """Post a job; the same key gives the same job, however often it is posted."""
        return self._call("POST", _PATHS[kind], json=dict(body), headers={"Idempotency-Key": idempotency})

    def start(self, job_id: str) -> dict[str, Any]:
        """Put a supervised job into the queue."""
        return self._call("POST", f"{_PATHS['sft']}/{job_id}/start", json={})

    def job(self, kind: Kind, job_id: str, *, once_s: float | None = None) -> dict[str, Any]:
        """A job; with `once_s` one try is made, which waits at most so many seconds for its answer."""
        path = f"{_PATHS[kind]}/{job_id}"
        if once_s is None:
            return self._call("GET", path)
        return self._call("GET", path, timeout_s=0.0, request_s=max(_SHORTEST_S, min(once_s, self._timeout_s)))

    def cancel(self, kind: Kind, job_id: str) -> dict[str, Any]:
        """End a job."""
        return self._call("POST", f"{_PATHS[kind]}/{job_id}/cancel", json={})

    def _call(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float | None = None,
        request_s: float | None = None,
        rewind: Callable[[], object] = lambda: None,
        **arguments: Any,
    ) -> dict[str, Any]:
        """One call, repeated until its deadline while it is worth it; `rewind` makes the body readable again.

        `timeout_s` bounds the repetitions, `request_s` each wait for the service in one of them.
        """
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        for pause_s in pauses(0.2, 5.0):
            rewind()
            try:
                return self._call_once(method, path, request_s or self._timeout_s, **arguments)
            except Unavailable as error:
                wait_s = max(pause_s, error.wait_s or 0.0)
                if time.monotonic() + wait_s > deadline:
                    raise
                time.sleep(wait_s)
        raise AssertionError("pauses never end")

    def _call_once(self, method: str, path: str, request_s: float, **arguments: Any) -> dict[str, Any]:
        until = time.monotonic() + request_s
        timeout = httpx.Timeout(request_s, connect=min(request_s, self._timeout_s))
        try:
            response = self._http.request(method, self.root + path, timeout=timeout, **arguments)
            response = followed(self._http, response, until)
        except RedirectRefused as error:
            raise PolicyError(self._say(str(error)), retryable=False) from error
        except httpx.TransportError as error:
            raise Unavailable(
                self._say(f"it cannot be reached ({type(error).__name__}); is it being served?")
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise PolicyError(self._say(f"the call failed ({type(error).__name__})"), retryable=False) from error
        try:
            body = response.json()
        except ValueError:
            body = None
        if response.is_success and isinstance(body, dict):
            return body
        sentence = self._say(_refusal(response.status_code, body))
        if response.status_code in (429, 502, 503, 504):
            raise Unavailable(sentence, _retry_after(response))
        raise PolicyError(sentence, retryable=False)

    def _say(self, sentence: str) -> str:
        return f"training service {self.root}: {sentence}"


def api_root(backend: str) -> str:
    """The address below which the routes are: `backend`, which may lack its `/api`.

    Raises ConfigError for what is no plain http(s) address.
    """
    parts = urlsplit(backend)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        sentence = "an http:// or https:// address is needed, such as http://127.0.0.1:8000/api"
        raise ConfigError(f"backend: {sentence}, got {backend!r}", field="backend")
    root = backend.rstrip("/")
    return root if root.endswith("/api") else f"{root}/api"


def is_local(url: str) -> bool:
    """Whether an address is this machine's own."""
    return is_loopback(urlsplit(url).hostname or "")


def pauses(first_s: float, longest_s: float) -> Iterator[float]:
    """Seconds to wait between tries, each half as long again as the one before, up to the longest."""
    pause_s = min(first_s, longest_s)
    while True:
        yield pause_s
        pause_s = min(1.5 * pause_s, longest_s)


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds a service asks for; a date is not used by ours and counts for nothing."""
    said = response.headers.get("Retry-After", "").strip()
    return min(float(said), _LONGEST_RETRY_S) if said.isdigit() else None


def _refusal(status: int, body: Any) -> str:
    said = body.get("error") if isinstance(body, dict) else None
    if not isinstance(said, dict):
        return f"HTTP {status}, and the answer is not a training service's"
    where = f" ({said['field']})" if said.get("field") else ""
    return f"HTTP {status}: {said.get('message', '')}{where}"
