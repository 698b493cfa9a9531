"""Files are checked line by line while they arrive, and kept under the hash of what they hold."""

from __future__ import annotations

import hashlib
import json

import httpx
import pytest

from tests.jobs.conftest import KEY, line, lines, tiny


def test_the_same_content_is_the_same_file(service):
    content = lines(3) + json.dumps(line()).encode()  # a last line needs no end
    first, second = service.upload(content), service.upload(content, name="../../other.jsonl")
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    told = first.json()
    sha256 = hashlib.sha256(content).hexdigest()
    assert (told["id"], told["lines"], told["bytes"]) == (f"file-{sha256}", 4, len(content))
    assert (told["status"], told["filename"], told["purpose"]) == ("ready", "train.jsonl", "fine-tune")
    assert service.http.get(f"/learning/files/{told['id']}").json() == told
    assert (service.folder / "files" / f"{sha256}.jsonl").read_bytes() == content


def _without(name):
    return {key: value for key, value in line().items() if key != name}


def _role(role):
    bad = line()
    bad["messages"][1]["role"] = role
    return bad


@pytest.mark.parametrize(
    ("bad", "field", "said"),
    [
        (b"{not json", "file", "not JSON"),
        (b"[1]", "file", "an object was expected"),
        (b"", "file", "not JSON"),
        (b"\xff\xfe", "file", "not UTF-8"),
        (json.dumps(_without("messages")).encode(), "file.messages", "required"),
        (json.dumps(line(messages=[])).encode(), "file.messages", "at least 1"),
        (json.dumps(_role("secretword")).encode(), "file.messages.1.role", "should be"),
        (json.dumps(line(messages=line()["messages"][:2])).encode(), "file.messages", "the last one must be"),
        (json.dumps(line(tools="secretword")).encode(), "file.tools", "valid list"),
        (b'"' + b"x" * 11_000_000, "file", "a line may have at most"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_kept(service, bad, field, said):
    before = sorted((service.folder / "files").iterdir())
    refused = service.upload(lines(2) + bad + b"\n" + lines(1))
    assert refused.status_code == 422
    error = refused.json()["error"]
    assert error["field"] == field
    assert error["message"].startswith("line 3: ")
    assert said in error["message"]
    assert "secretword" not in refused.text
    assert sorted((service.folder / "files").iterdir()) == before


def test_a_fault_in_a_large_file_is_heard_of(service):
    """Also by a client that sends all of it before it listens."""
    refused = service.upload(b"{}\n" + lines(40_000))
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "file.messages")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"files": {"file": ("x", b"")}}, "file"),
        ({"files": {"other": ("x", lines())}}, ""),
        ({"files": {"file": ("x", lines())}, "data": {"purpose": "secretword"}}, "purpose"),
        ({"files": {"file": ("x", lines())}, "data": {"purpose": "secretword" * 100}}, "purpose"),
        ({"files": [("file", ("x", lines())), ("file", ("y", lines()))]}, "file"),
        ({"files": {"purpose": (None, "fine-tune")}}, "file"),
        ({"content": b"hello"}, ""),
        ({"content": b"hello", "headers": {"Content-Type": "multipart/form-data; boundary=x"}}, ""),
        ({"content": b"--x\r\n", "headers": {"Content-Type": "multipart/form-data; boundary=x"}}, ""),
    ],
)
def test_a_form_that_is_none(service, arguments, field):
    refused = service.http.post("/learning/files", **arguments)
    assert refused.status_code == 422, refused.text
    assert refused.json()["error"]["field"] == field
    assert "secretword" not in refused.text


def test_limits(serve_jobs):
    small = serve_jobs("--jobs.max_file_bytes=2000", "--jobs.max_body_bytes=1000")
    assert small.upload(lines(1)).status_code == 201
    assert small.upload(lines(100)).status_code == 413
    assert small.post_rl(tiny(x={"y": "z" * 2000})).status_code == 413
    assert not [path for path in (small.folder / "files").iterdir() if path.name.startswith(".partial")]


def test_no_file_without_the_key(service):
    address = f"{service.url}/learning/files"
    for headers in ({}, {"X-API-Key": KEY + "x"}):
        refused = httpx.post(address, files={"file": ("x", lines())}, headers=headers, trust_env=False)
        assert refused.status_code == 401
    assert service.http.get("/learning/files/file-0").status_code == 404
