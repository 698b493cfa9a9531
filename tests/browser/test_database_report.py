"""The page of `traces analyze` in a real browser: numbers are there, plots are drawn, nothing is fetched."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("matplotlib", reason="the page needs the extra `train`")

from task_app.analyze.database import analyze_database
from task_app.analyze.database_report import write_database_report
from task_app.store import TraceStore
from tests.known_traces import known_episodes, write_known

EVIL = "<img src=http://127.0.0.1:1/x onerror=alert(1)>"


@pytest.fixture
def page_file(tmp_path):
    with TraceStore.open(tmp_path / "known.db") as store:
        write_known(store)
        store.write_episode(replace(known_episodes()[3], episode_id=EVIL, run_id=EVIL, cause=EVIL, member=3))
        report = analyze_database(store, compare=("gpt-4o-mini", "qwen/qwen3-32b"))
    write_database_report(tmp_path / "page.html", report)
    return tmp_path / "page.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1000, 400])
def test_it_is_drawn_and_fetches_nothing(chromium, page_file, scheme, width):
    page = chromium.new_page(color_scheme=scheme, viewport={"width": width, "height": 700})
    trouble, fetched = [], []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("dialog", lambda dialog: (trouble.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: fetched.append(request.url))
    page.goto(page_file.as_uri())
    assert page.locator("h1").inner_text() == "known.db"
    plots = page.locator("figure svg")
    assert plots.count() == 2
    for index in range(2):
        assert plots.nth(index).bounding_box()["width"] > 0.8 * min(width, 960) - 40
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (
        "wide tables scroll by themselves"
    )
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[scheme]
    assert (trouble, fetched) == ([], [page_file.as_uri()])
    page.close()


def test_numbers_are_visible(chromium, page_file):
    page = chromium.new_page(viewport={"width": 1200, "height": 800})
    page.goto(page_file.as_uri())
    players = page.locator("h2:text-is('players') ~ div table").first
    assert players.locator("tr").nth(1).inner_text().split()[:6] == ["chat:gpt-4o-mini", "1", "5", "3", "11", "11"]
    achievements = page.locator("h2:text-is('achievements · random') ~ div table").first
    cells = achievements.locator("tr").nth(1).locator("td")
    assert cells.first.inner_text() == "collect_wood"
    bar = cells.nth(1).locator("span")
    assert bar.bounding_box()["width"] == pytest.approx(cells.nth(1).bounding_box()["width"] / 2, rel=0.15)
    assert EVIL in page.locator("ul.warnings").inner_text()
    assert page.locator("body").inner_text().count("2.00") >= 3
    page.close()
