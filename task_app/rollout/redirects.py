"""An answer that is to be fetched elsewhere on the same server: a redirect (303) is followed by GET.

Modal answers what takes longer than 150 seconds so: the address is the one that was asked, with a query that names the
request; asking it begins nothing, it waits for the result, and again answers 303 after 150 seconds
(modal.com/docs/guide/webhook-timeouts). No other status is followed, and no other origin is ever asked: the client's
headers hold a key.
"""

from __future__ import annotations

import logging
import time

import httpx

from task_app.core.errors import PolicyError

__all__ = ["RedirectRefused", "followed"]

# httpx tells every address at INFO, and an address may hold a secret: a query, or a trainer's endpoint.
logging.getLogger("httpx").setLevel(logging.WARNING)

_PAUSE_S = 0.1
"""Between redirects, so that a server that sends round in a circle is not asked without end at full speed."""


class RedirectRefused(PolicyError):
    """A redirect to somewhere else, or to nowhere."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


def followed(client: httpx.Client, response: httpx.Response, deadline: float) -> httpx.Response:
    """`response`, or what is found where it redirects to (303), however often, until `deadline` of `time.monotonic`.

    Raises RedirectRefused for another origin (scheme, host, port) or no address, httpx.ReadTimeout at the deadline,
    and what `client.get` raises.
    """
    origin = _origin(response.request.url)
    while response.status_code == 303:
        try:
            url = response.request.url.join(response.headers.get("Location", ""))
        except httpx.InvalidURL as error:
            raise RedirectRefused("HTTP 303, and its Location is no address") from error
        if "Location" not in response.headers or _origin(url) != origin:
            raise RedirectRefused("HTTP 303 to another origin, which is not followed: the key is for this one alone")
        left_s = deadline - time.monotonic() - _PAUSE_S
        if left_s <= 0:
            raise httpx.ReadTimeout("redirects until the deadline", request=response.request)
        time.sleep(_PAUSE_S)
        response = client.get(url, timeout=left_s, follow_redirects=False)
    return response


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    """Scheme, host and port; a scheme's own port is the same as none (httpx makes it none)."""
    return url.scheme, url.host, url.port
