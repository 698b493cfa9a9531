"""A viewer that runs, and a page of it that is watched: for the browser tests of the viewer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

__all__ = ["Looking", "showing"]


@contextmanager
def showing(database: Path, **environ: str) -> Iterator[str]:
    """`task-app traces view` on a free port, ended by its process id; gives the page's address."""
    command = [sys.executable, "-m", "task_app", "traces", "view", "--db", str(database), "--port", "0"]
    clean = {name: value for name, value in os.environ.items() if name != "ENVIRONMENT_API_KEY"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean | environ)
    assert process.stdout is not None
    try:
        found = re.search(r"http://127\.0\.0\.1:\d+/viewer", process.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        process.kill()
        process.communicate()


class Looking:
    """A page that is watched: whatever its console says, and whatever it asks for."""

    def __init__(self, page: Any, address: str) -> None:
        self.page, self.address = page, address
        self.trouble: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.trouble.append(message.text))
        page.on("pageerror", lambda error: self.trouble.append(str(error)))
        page.on("dialog", lambda dialog: (self.trouble.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: self.asked.append(request.url))

    def at(self, query: str = "") -> None:
        self.page.goto(self.address + query)
        self.settled()

    def settled(self) -> None:
        self.page.wait_for_selector("main:not([aria-busy]) h1")

    def at_step(self, step: int) -> bytes:
        """Wait for the picture after `step` steps and give the bytes it was loaded from."""
        self.page.wait_for_selector(f".screen img[data-step='{step}']")
        shown = self.page.locator(".screen img")
        assert shown.evaluate("image => image.complete && image.naturalWidth") == 144
        bytes_of = "async image => Array.from(new Uint8Array(await (await fetch(image.src)).arrayBuffer()))"
        return bytes(shown.evaluate(bytes_of))

    def turn(self) -> int:
        """The turn of the one bar that is highlighted."""
        current = self.page.locator(".timeline [aria-current]")
        assert current.count() == 1
        turn = int(current.get_attribute("data-turn"))
        assert self.page.locator(".decision-panel h2").inner_text() == f"Decision {turn} of 20"
        return turn

    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.page.url).query)

    def keep(self, name: str) -> None:
        folder = os.environ.get("TASK_APP_ARTIFACTS")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=Path(folder) / f"viewer-{name}.png")
        else:
            assert len(self.page.screenshot()) > 5_000
