"""A real headless Chromium for pages people look at; it may reach nothing but this machine.

Skipped, with the reason printed, where none is installed; with TASK_APP_REQUIRE_BROWSER=1 that is an error.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")  # no longer: playwright keeps an event loop running, which other tests cannot have
def chromium() -> Iterator:
    executable = shutil.which("chromium")
    if executable is None:
        if os.environ.get("TASK_APP_REQUIRE_BROWSER") == "1":
            pytest.fail("no chromium, but TASK_APP_REQUIRE_BROWSER=1")
        pytest.skip("browser test: no chromium on this machine")
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    arguments += ["--disable-background-networking", "--disable-component-update"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        yield browser
        browser.close()
