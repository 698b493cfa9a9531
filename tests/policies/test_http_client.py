"""One exchange by libcurl, over real sockets: what is sent, kept, limited, trusted, and never done."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import trustme

from task_app.policies import http_client
from task_app.policies.http_client import Answer, CallFailed, HttpClient, header_line
from tests.policies.stub_endpoint import StubEndpoint

JSON = "Content-Type: application/json"


@pytest.fixture(autouse=True)
def no_authorities_set(monkeypatch):
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def client() -> Iterator[HttpClient]:
    with HttpClient() as made:
        yield made


def post(client: HttpClient, url: str, content: bytes = b"{}", **changes: Any) -> Answer:
    settings: dict[str, Any] = {
        "headers": ["Content-Type: application/json"],
        "timeout_s": 5.0,
        "most": lambda status: 1_000_000,
    }
    return client.call("POST", url, content=content, **settings | changes)


def get(client: HttpClient, url: str) -> Answer:
    return client.call("GET", url, headers=[], content=None, timeout_s=5.0, most=lambda status: 1_000_000)


def open_files(at_most: int | None = None) -> int:
    """How many there are; those of the endpoint's ends close in its own time, so `at_most` is waited for a while."""
    ends = time.monotonic() + 5
    while (number := len(os.listdir("/proc/self/fd"))) > (at_most or number) and time.monotonic() < ends:
        time.sleep(0.02)
    return number


# -- what is sent ---------------------------------------------------------------------------------


def test_sends_what_it_is_given(endpoint, client):
    body = b'{"text": "' + b"x" * 2_000_000 + b'"}'
    assert post(client, f"{endpoint.url}/a?b=c", body, headers=["Content-Type: application/json", "X-One: 1"]).whole
    (received,) = endpoint.received
    assert (received.method, received.path, len(received.body["text"])) == ("POST", "/a?b=c", 2_000_000)
    assert received.headers["x-one"] == "1"
    assert "expect" not in received.headers


def test_a_get_after_a_post_has_no_body(endpoint, client):
    post(client, endpoint.url)
    get(client, endpoint.url)
    assert [received.method for received in endpoint.received] == ["POST", "GET"]
    assert "content-length" not in endpoint.received[1].headers


@pytest.mark.parametrize("value", ["a\r\nX-Injected: 1", "ü", "a\0", ""])
def test_a_value_that_would_end_its_header_is_refused(value):
    with pytest.raises(ValueError, match="header X-Key is empty or not printable ASCII"):
        header_line("X-Key", value)


# -- connections ----------------------------------------------------------------------------------


def test_calls_one_after_the_other_share_a_connection(endpoint, client):
    for _ in range(3):
        post(client, endpoint.url)
    assert len({received.client for received in endpoint.received}) == 1


def test_many_threads_have_each_its_own_and_leave_none_behind(endpoint):
    before = open_files()
    with HttpClient() as client, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: post(client, endpoint.url), range(64)))
    assert {answer.status for answer in answers} == {200}
    assert 1 <= len({received.client for received in endpoint.received}) <= 8
    assert open_files(at_most=before) <= before


def test_what_a_kept_connection_took_and_closed_is_not_sent_again(endpoint, client):
    post(client, endpoint.url)
    endpoint.plan(endpoint.reset)
    with pytest.raises(CallFailed, match="the connection broke"):
        post(client, endpoint.url)
    assert len({received.client for received in endpoint.received}) == 1
    assert len(endpoint.received) == 2


def test_a_kept_connection_that_was_closed_meanwhile_is_replaced(endpoint, client):
    def closing(handler: BaseHTTPRequestHandler) -> None:
        endpoint.raw(b"{}")(handler)
        handler.close_connection = True

    endpoint.plan(closing)
    post(client, endpoint.url)
    time.sleep(1.2)  # libcurl looks at most once a second
    assert post(client, endpoint.url).status == 200
    assert len({received.client for received in endpoint.received}) == 2


def test_connections_long_unused_are_closed(endpoint, client, monkeypatch):
    with ThreadPoolExecutor(4) as pool:
        endpoint.otherwise = endpoint.slow(0.1, endpoint.call("noop"))
        list(pool.map(lambda _: post(client, endpoint.url), range(4)))
    assert len(client._idle) == 4
    monkeypatch.setattr(http_client, "_IDLE_S", 0.0)
    post(client, endpoint.url)
    assert len(client._idle) == 1


def test_a_client_closed_during_a_call_closes_its_connection_after_it(endpoint):
    before, client = open_files(), HttpClient()
    endpoint.plan(endpoint.slow(0.3, endpoint.call("noop")))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(post, client, endpoint.url)
        time.sleep(0.1)
        client.close()
        assert answer.result().status == 200
    assert open_files(at_most=before) <= before


# -- limits ---------------------------------------------------------------------------------------


def test_the_limit_is_of_the_whole_exchange(endpoint, client):
    endpoint.plan(endpoint.trickle)
    begun = time.monotonic()
    with pytest.raises(CallFailed, match=r"no whole answer within 0.3 s"):
        post(client, endpoint.url, timeout_s=0.3)
    assert 0.25 < time.monotonic() - begun < 3


def test_a_body_is_read_up_to_the_most_wanted(endpoint, client):
    endpoint.plan(endpoint.raw(b"x" * 100), endpoint.raw(b"x" * 101))
    assert post(client, endpoint.url, most=lambda status: 100) == Answer(200, b"x" * 100, True, "")
    assert post(client, endpoint.url, most=lambda status: 100) == Answer(200, b"x" * 100, False, "")


def test_the_most_counts_what_is_unpacked(endpoint, client):
    packed = gzip.compress(b"x" * 1_000_000)
    endpoint.plan(endpoint.raw(packed, content_encoding="gzip"), endpoint.raw(packed, content_encoding="gzip"))
    assert post(client, endpoint.url).body == b"x" * 1_000_000
    assert post(client, endpoint.url, most=lambda status: 10_000) == Answer(200, b"x" * 10_000, False, "")


@pytest.mark.parametrize("encoding", ["gzip", "utf-8"])
def test_a_body_that_cannot_be_unpacked_is_named(endpoint, client, encoding):
    endpoint.plan(endpoint.raw(b"{}", content_encoding=encoding))
    with pytest.raises(CallFailed, match="^its answer cannot be unpacked$"):
        post(client, endpoint.url)


def test_a_refusal_is_known_though_its_words_never_end(endpoint, client):
    endpoint.plan(endpoint.hang_in_refusal)
    answer = post(client, endpoint.url, timeout_s=2.0)
    assert (answer.status, answer.body, answer.whole) == (400, b"{", False)


@pytest.mark.parametrize("early", [b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_an_informational_answer_is_not_the_answer(endpoint, client, early):
    def then_nothing(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(early)
        endpoint.hang(handler)

    def then_all(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(early)
        endpoint.raw(b"{}")(handler)

    endpoint.plan(then_all, then_nothing)
    assert post(client, endpoint.url) == Answer(200, b"{}", True, "")
    with pytest.raises(CallFailed, match="no whole answer"):
        post(client, endpoint.url, timeout_s=0.3)


def test_a_body_nobody_wants_is_not_waited_for(endpoint, client):
    endpoint.plan(endpoint.hang_in_refusal)
    begun = time.monotonic()
    answer = post(client, endpoint.url, most=lambda status: 0 if status == 400 else 100)
    assert (answer.status, answer.body) == (400, b"")
    assert time.monotonic() - begun < 0.5


def test_a_signal_is_heeded_during_a_call_of_the_main_thread(endpoint, client):
    class Told(Exception): ...

    def tell(*anything: object) -> None:
        raise Told

    before = signal.signal(signal.SIGUSR1, tell)
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    try:
        endpoint.plan(endpoint.hang)
        timer.start()
        begun = time.monotonic()
        with pytest.raises(Told):
            post(client, endpoint.url, timeout_s=4.0)
        assert time.monotonic() - begun < 2
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


# -- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ("reset", "closed while the answer was awaited"),
        ("reset_mid_body", "closed (while the answer was awaited|in the middle of the answer)"),
    ],
)
def test_a_broken_connection_says_how(endpoint, client, behaviour, why):
    endpoint.plan(getattr(endpoint, behaviour))
    with pytest.raises(CallFailed, match=rf"^the connection broke \({why}\)$"):
        post(client, endpoint.url)


def test_after_a_failure_the_next_call_is_as_good_as_any(endpoint, client):
    endpoint.plan(endpoint.trickle, endpoint.raw(b"{}"))
    with pytest.raises(CallFailed):
        post(client, endpoint.url, timeout_s=0.2)
    assert post(client, endpoint.url).body == b"{}"


def test_only_http_is_spoken(client, tmp_path):
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(CallFailed, match="libcurl error 1"):
        get(client, f"file://{tmp_path}/secret")


def test_redirects_are_answers(endpoint, client):
    endpoint.plan(endpoint.raw(b"", 307, location=f"{endpoint.url}/elsewhere"))
    assert post(client, endpoint.url).status == 307
    assert len(endpoint.received) == 1


def test_no_netrc_is_read(endpoint, client, monkeypatch, tmp_path):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    post(client, endpoint.url)
    assert "authorization" not in endpoint.received[0].headers


# -- proxies --------------------------------------------------------------------------------------


def test_the_environments_proxy_is_used_unless_none_is_wanted(endpoint, monkeypatch):
    monkeypatch.setenv("http_proxy", endpoint.url)
    monkeypatch.delenv("no_proxy", raising=False)
    with HttpClient() as through:
        assert get(through, "http://elsewhere.test/a").status == 200
    assert endpoint.received[0].path == "http://elsewhere.test/a"
    with HttpClient(proxies=False) as straight, pytest.raises(CallFailed, match="cannot be reached"):
        straight.call("GET", "http://127.0.0.1:9/", headers=[], content=None, timeout_s=2.0, most=lambda status: 10)


# -- whom it trusts -------------------------------------------------------------------------------


@contextmanager
def served_over_tls(authority: trustme.CA, name: str) -> Iterator[str]:
    """An https server with a certificate for `name`, which answers "ok"; gives its address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    with StubEndpoint(context) as endpoint:
        endpoint.otherwise = endpoint.raw(b"ok")
        yield endpoint.url


@pytest.fixture
def authority(tmp_path, monkeypatch) -> trustme.CA:
    """One that `SSL_CERT_FILE` names."""
    made = trustme.CA()
    path = tmp_path / "authority.pem"
    made.cert_pem.write_to_path(str(path))
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    return made


def test_an_authority_of_the_environment_is_trusted(authority):
    with served_over_tls(authority, "127.0.0.1") as url, HttpClient() as client:
        assert get(client, url).body == b"ok"


def test_a_certificate_of_another_name_is_not(authority):
    not_trusted = pytest.raises(CallFailed, match=r"^it cannot be reached: its certificate is not trusted$")
    with served_over_tls(authority, "elsewhere.test") as url, HttpClient() as client, not_trusted:
        get(client, url)


def test_nor_one_of_an_unknown_authority():
    not_trusted = pytest.raises(CallFailed, match="its certificate is not trusted")
    with served_over_tls(trustme.CA(), "127.0.0.1") as url, HttpClient() as client, not_trusted:
        get(client, url)


def test_a_folder_of_authorities_takes_the_place_of_the_usual(authority, tmp_path, monkeypatch):
    """OpenSSL finds an authority in a folder by the hash of its name."""
    monkeypatch.delenv("SSL_CERT_FILE")
    folder = tmp_path / "authorities"
    folder.mkdir()
    monkeypatch.setenv("SSL_CERT_DIR", str(folder))
    with served_over_tls(authority, "127.0.0.1") as url:
        with HttpClient() as client, pytest.raises(CallFailed, match="its certificate is not trusted"):
            get(client, url)
        shutil.copy(tmp_path / "authority.pem", folder / "authority.pem")
        subprocess.run(["openssl", "rehash", str(folder)], check=True)
        with HttpClient() as client:
            assert client._file is None
            assert get(client, url).body == b"ok"


def test_a_file_of_authorities_that_is_not_there_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "nothing.pem"))
    unread = pytest.raises(CallFailed, match="the authorities of SSL_CERT_FILE cannot be read")
    with served_over_tls(trustme.CA(), "127.0.0.1") as url, HttpClient() as client, unread:
        get(client, url)


def test_the_authorities_are_there_without_any_setting():
    with HttpClient() as client:
        assert client._file is not None
        assert Path(client._file).read_text().count("BEGIN CERTIFICATE") > 50
