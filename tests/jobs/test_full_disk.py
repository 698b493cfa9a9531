"""A disk without room, and what a killed service left: 503 instead of a fault, and nothing stays of it."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.jobs.conftest import KEY, Service, lines, tiny


@contextmanager
def room(service: Service, size: int) -> Iterator[None]:
    """No file of the service's may grow beyond `size` bytes: writing fails as on a full disk."""
    before = resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, before)


def left(folder: Path) -> list[str]:
    """Files and folders that are no database."""
    return sorted(str(path) for path in folder.rglob("*") if not path.name.startswith("jobs.db"))


def test_an_upload_that_finds_no_room(service):
    before = left(service.folder)
    for content in (lines(2000), lines(20)):  # while it arrives; when what is left of it is written
        with room(service, 2_000):
            refused = service.upload(content)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
        assert left(service.folder) == before
    assert service.upload(lines(2000)).status_code == 201


def test_a_job_whose_folder_finds_no_room(service):
    before = left(service.folder)
    with room(service, 2_000):
        refused = service.post_rl(tiny(algorithm={"text": "x" * 5_000}))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
    assert left(service.folder) == before
    assert service.http.get("/rl/jobs").json() == {"jobs": []}


def test_a_job_whose_row_finds_no_room_leaves_no_folder(service):
    before = left(service.folder)
    with room(service, 4_000):  # enough for its config, not for a page of the database
        refused = service.post_rl(tiny())
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
    assert left(service.folder) == before
    assert service.http.get("/rl/jobs").json() == {"jobs": []}


def test_what_a_killed_service_left_of_an_upload_is_removed(serve_jobs):
    service: Service = serve_jobs()
    kept = service.upload(lines(3)).json()
    files = service.folder / "files"
    head = (
        f"POST /api/learning/files HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY}\r\nContent-Length: 100000\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\n\r\n"
        '--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
    )
    with socket.create_connection(("127.0.0.1", service.port)) as wire:
        wire.sendall(head.encode() + lines(2))
        deadline = time.monotonic() + 20
        while not list(files.glob(".partial-*")):
            assert time.monotonic() < deadline, "the upload did not begin"
            time.sleep(0.02)
        service.kill()
    assert list(files.glob(".partial-*"))
    service.again()
    assert [path.name for path in files.iterdir()] == [f"{kept['sha256']}.jsonl"]
