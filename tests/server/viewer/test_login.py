"""Who may look: the key by header or by form, the cookie, the host name, and the headers of every answer."""

from __future__ import annotations

import re

import httpx
import pytest

from task_app.http.auth import same_as_any
from task_app.server.viewer import login
from task_app.server.viewer.login import MOST_SESSIONS, SESSION_S, Lock, Sessions

pytestmark = pytest.mark.anyio
KEY = "ek-1"
WITH_KEY = {"ENVIRONMENT_API_KEY": KEY}
FORM = {"content-type": "application/x-www-form-urlencoded"}


async def log_in(http: httpx.AsyncClient, **fields: str) -> httpx.Response:
    return await http.post("/viewer/login", data={"key": KEY, **fields})


# -- the standalone app ---------------------------------------------------------------------------


async def test_without_a_key_pages_ask_for_it_and_requests_are_refused(viewing, known):
    async with viewing(known, WITH_KEY) as http:
        for path in ("/viewer", "/viewer?run=night", "/viewer/", "/viewer/static/main.js", "/viewer/no/such"):
            asked = await http.get(path)
            assert asked.status_code == 401
            assert asked.headers["content-type"].startswith("text/html")
            assert '<input id="key" name="key" type="password"' in asked.text
        for path in ("/viewer/api/runs", "/viewer/api/episode?id=night-1a", "/viewer/api/frame?id=night-1a&step=0"):
            refused = await http.get(path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "unauthorized")
        assert (await http.post("/viewer/api/runs")).status_code == 401
        assert (await http.get("/viewer/static/login.css")).status_code == 200
        assert (await http.get("/viewer/static/icon.svg")).status_code == 200
        assert (await http.post("/viewer/static/login.css")).status_code == 401


@pytest.mark.parametrize("headers", [{"X-API-Key": KEY}, {"Authorization": f"Bearer {KEY}"}])
async def test_the_key_as_a_header_opens_everything(viewing, known, headers):
    async with viewing(known, WITH_KEY) as http:
        assert (await http.get("/viewer", headers=headers)).status_code == 200
        assert (await http.get("/viewer/api/runs", headers=headers)).json()["total"] == 3


async def test_the_form_sets_a_cookie_that_is_not_the_key_and_opens_reading(viewing, known):
    async with viewing(known, WITH_KEY) as http:
        entered = await log_in(http)
        assert (entered.status_code, entered.headers["location"]) == (303, "/viewer")
        cookie = entered.headers["set-cookie"]
        assert KEY not in cookie
        assert re.search(r"^task_app_viewer_8011=[\w-]{40,};", cookie)
        for part in ("HttpOnly", "SameSite=strict", "Path=/viewer", "Max-Age=43200"):
            assert part in cookie
        assert "Secure" not in cookie
        assert (await http.get("/viewer")).status_code == 200
        assert (await http.get("/viewer/api/runs")).json()["total"] == 3


async def test_over_https_the_cookie_is_secure(viewing, known):
    async with viewing(known, WITH_KEY, base_url="https://traces.example") as http:
        assert "Secure" in (await log_in(http)).headers["set-cookie"]
        assert (await http.get("/viewer/api/runs")).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"key=wrong",
        b"key=",
        b"",
        b"key=ek-",
        b"key=ek-1x",
        b"key=EK-1",
        b"key=ek-1&key=wrong",
        b"\xff\xfe",
        b"{}",
        b"api_key=ek-1",
    ],
)
async def test_anything_else_gives_the_form_again_and_no_cookie(viewing, known, body):
    async with viewing(known, WITH_KEY) as http:
        refused = await http.post("/viewer/login", content=body, headers=FORM)
        assert refused.status_code == 401
        assert "That is not the key." in refused.text
        assert "set-cookie" not in refused.headers
        assert "wrong" not in refused.text
        assert (await http.get("/viewer/api/runs")).status_code == 401


async def test_spaces_around_a_pasted_key_do_not_count(viewing, known):
    async with viewing(known, WITH_KEY) as http:
        assert (await http.post("/viewer/login", data={"key": f" {KEY}\n"})).status_code == 303


async def test_a_form_of_too_many_fields_or_bytes_is_refused(viewing, known):
    async with viewing(known, WITH_KEY) as http:
        big = await http.post("/viewer/login", content=b"key=" + b"x" * 20_000, headers=FORM)
        assert (big.status_code, big.json()["error"]["code"]) == (413, "too_large")
        many = await http.post("/viewer/login", content=b"&".join(b"a=1" for _ in range(50)), headers=FORM)
        assert many.status_code == 401


async def test_keys_are_compared_in_constant_time(viewing, known, monkeypatch):
    compared = []
    monkeypatch.setattr(login, "same_as_any", lambda given, keys: compared.append(given) or same_as_any(given, keys))
    async with viewing(known, WITH_KEY) as http:
        await http.post("/viewer/login", data={"key": "guess"})
    assert compared == [[b"guess"]]


async def test_logging_out_ends_the_session_and_forgets_the_cookie(viewing, known):
    async with viewing(known, WITH_KEY) as http:
        await log_in(http)
        assert '<form method="post" action="/viewer/logout">' in (await http.get("/viewer")).text
        token = http.cookies["task_app_viewer_8011"]
        left = await http.post("/viewer/logout")
        assert (left.status_code, left.headers["location"]) == (303, "/viewer")
        assert "task_app_viewer_8011" not in http.cookies
        stale = await http.get("/viewer/api/runs", headers={"cookie": f"task_app_viewer_8011={token}"})
        assert stale.status_code == 401


@pytest.mark.parametrize(
    ("asked", "onwards"),
    [
        ("/viewer?episode=a%2Fb%22%3E&step=3", "/viewer?episode=a%2Fb%22%3E&step=3"),
        ("/viewer", "/viewer"),
        ("/viewer/logout", "/viewer"),
        ("/viewer/login", "/viewer"),
    ],
)
async def test_the_form_leads_back_to_where_one_wanted_to_go(viewing, known, asked, onwards):
    async with viewing(known, WITH_KEY) as http:
        form = (await http.get(asked)).text
        found = re.search(r'name="next" type="hidden" value="([^"]*)"', form)
        assert found is not None
        assert found[1].replace("&amp;", "&") == onwards
        assert (await log_in(http, next=onwards)).headers["location"] == onwards


@pytest.mark.parametrize(
    "bad",
    [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "/viewer\\@evil.example",
        "/viewer.evil.example",
        "/viewerx",
        "/viewer?a\r\nSet-Cookie: x=1",
        "javascript:alert(1)",
        "/rollout",
        "",
    ],
)
async def test_the_form_leads_nowhere_else(viewing, known, bad):
    async with viewing(known, WITH_KEY) as http:
        assert (await log_in(http, next=bad)).headers["location"] == "/viewer"


async def test_what_is_asked_for_cannot_become_markup_of_the_form(viewing, known):
    async with viewing(known, WITH_KEY) as http:
        page = await http.get('/viewer?x="><script>alert(1)</script>')
        assert "<script" not in page.text
        again = await http.post("/viewer/login", data={"key": "x", "next": '/viewer?"><script>alert(1)</script>'})
        assert "<script" not in again.text


@pytest.mark.parametrize(
    "cookie", ["task_app_viewer_8011=guess", "task_app_viewer_8011=", "task_app_viewer_8011", "x=y", 'a="', "\xe9=1"]
)
async def test_another_cookie_opens_nothing(viewing, known, cookie):
    async with viewing(known, WITH_KEY) as http:
        headers = [(b"cookie", cookie.encode("latin-1"))]
        assert (await http.get("/viewer/api/runs", headers=headers)).status_code == 401


@pytest.mark.parametrize("host", ["127.0.0.1:8011", "localhost", "LOCALHOST:80", "[::1]:8011", "127.9.9.9"])
async def test_without_a_key_this_machine_is_served(viewing, known, host):
    async with viewing(known) as http:
        assert (await http.get("/viewer", headers={"host": host})).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8011", "127.0.0.1.evil.example", "localhost.evil", "", "[::1", "a:b:c", "10.0.0.1"],
)
async def test_a_foreign_name_for_this_machine_is_refused_without_a_key(viewing, known, host):
    async with viewing(known) as http:
        for path in ("/viewer", "/viewer/api/runs", "/viewer/static/main.js"):
            refused = await http.get(path, headers={"host": host})
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "bad_host")
    async with viewing(known, WITH_KEY) as http:
        assert (await http.get("/viewer", headers={"host": "evil.example", "x-api-key": KEY})).status_code == 200


@pytest.mark.parametrize("environ", [{}, WITH_KEY])
async def test_every_answer_carries_the_headers(viewing, known, environ):
    async with viewing(known, environ) as http:
        for path in ("/viewer", "/viewer/static/main.js", "/viewer/api/runs", "/viewer/api/x", "/viewer/static/none"):
            headers = (await http.get(path)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cache-control"] in ("no-store", "no-cache")


async def test_files_come_with_their_types_and_nothing_outside_the_folder(viewing, known):
    async with viewing(known) as http:
        types = {"main.js": "text/javascript", "viewer.css": "text/css", "icon.svg": "image/svg+xml"}
        for name, kind in types.items():
            answer = await http.get(f"/viewer/static/{name}")
            assert answer.headers["content-type"].startswith(kind)
            same = await http.get(f"/viewer/static/{name}", headers={"If-None-Match": answer.headers["etag"]})
            assert same.status_code == 304
        for name in ("login.html", "index.html", "..%2Froutes.py", "../routes.py", "%2e%2e/login.py", "", "main.js/x"):
            assert (await http.get(f"/viewer/static/{name}")).status_code == 404


# -- the same page in the hosted app --------------------------------------------------------------


async def test_the_cookie_opens_the_viewer_of_the_hosted_app_and_nothing_else(hosted, body_of):
    async with hosted(environ=WITH_KEY) as app:
        http = app.http
        assert (await http.get("/viewer")).status_code == 401
        played = await http.post("/rollout", json=body_of(), headers={"x-api-key": KEY})
        assert (await log_in(http)).status_code == 303
        assert (await http.get("/viewer")).status_code == 200
        rows = (await http.get("/viewer/api/episodes")).json()["episodes"]
        assert [row["episode_id"] for row in rows] == [played.json()["metrics"]["details"]["episode_id"]]
        token = {"cookie": "; ".join(f"{name}={value}" for name, value in http.cookies.items())}
        assert (await http.get("/info", headers=token)).status_code == 401
        assert (await http.post("/rollout", json=body_of(), headers=token)).status_code == 401
        assert (await http.post("/viewer/api/runs", headers=token)).status_code == 401
        assert (await http.get("/viewer/../rollout", headers=token)).status_code in (401, 404, 405)
        assert (await http.get("/viewerx", headers=token)).status_code == 401
        assert (await http.get("/health")).status_code == 200
        assert "viewer" not in str(list((await http.get("/openapi.json", headers={"x-api-key": KEY})).json()["paths"]))


async def test_the_hosted_app_without_a_key_shows_this_machine_only(hosted):
    async with hosted() as app:
        local = {"host": "127.0.0.1:8010"}
        assert (await app.http.get("/viewer", headers=local)).status_code == 200
        assert (await app.http.get("/viewer/api/runs", headers=local)).json() == {"runs": [], "total": 0}
        assert (await app.http.get("/viewer")).status_code == 400  # as http://app
        assert (await app.http.get("/info")).status_code == 200


# -- sessions -------------------------------------------------------------------------------------


def test_a_session_ends_after_twelve_hours():
    now = [1000.0]
    sessions = Sessions(clock=lambda: now[0])
    token = sessions.begin()
    now[0] += SESSION_S - 1
    assert sessions.holds(token)
    now[0] += 1
    assert not sessions.holds(token)
    assert SESSION_S == 43_200


def test_sessions_are_bounded_and_the_oldest_goes_first():
    sessions = Sessions()
    tokens = [sessions.begin() for _ in range(MOST_SESSIONS + 1)]
    assert len(set(tokens)) == len(tokens)
    assert [sessions.holds(token) for token in (tokens[0], tokens[1], tokens[-1])] == [False, True, True]
    sessions.end(tokens[1])
    sessions.end("unknown")
    assert not sessions.holds(tokens[1])


def test_a_lock_admits_nothing_outside_the_viewer():
    lock = Lock([KEY])
    scope = {"headers": [], "server": ("h", 1)}
    for method, path in (
        ("POST", "/login"),
        ("POST", "/rollout"),
        ("GET", "/"),
        ("GET", "/viewer"),
        ("PUT", "/viewer/login"),
    ):
        assert not lock.admits({**scope, "method": method, "path": path})
    assert lock.admits({**scope, "method": "POST", "path": "/viewer/login"})
