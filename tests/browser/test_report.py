"""The training report in a real browser: plots are drawn, nothing is fetched, light and dark both work."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib", reason="the report needs the extra `train`")

from task_app.analyze.report import CurvePoint, TrainingReport, write_report
from task_app.analyze.stats import mean_interval, summarise


@pytest.fixture
def report(tmp_path, play_scripted):
    random = summarise(play_scripted(range(3), 1, policy="random", max_decisions=10))
    expert = summarise(play_scripted(range(3), 1, policy="expert", max_decisions=10))
    curve = [CurvePoint(update, mean_interval([1.0 + update / 5, 2.0]), 1.5) for update in range(1, 6)]
    held_out = {"random": random, "before": random, "after": expert}
    path = tmp_path / "report.html"
    write_report(path, TrainingReport("<script>alert(1)</script> & co", curve, held_out, {"seed": 3}, {"step": 2.0}))
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_report_is_drawn_and_fetches_nothing(chromium, report, scheme):
    page = chromium.new_page(color_scheme=scheme, viewport={"width": 900, "height": 700})
    trouble, fetched = [], []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("dialog", lambda dialog: (trouble.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: fetched.append(request.url))
    page.goto(report.as_uri())
    assert page.locator("h1").inner_text() == "<script>alert(1)</script> & co"
    plots = page.locator("figure svg")
    assert plots.count() == 4
    for index in range(4):
        box = plots.nth(index).bounding_box()
        assert 500 < box["width"] <= 900
        assert box["height"] > 150
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[scheme]
    assert trouble == []
    assert fetched == [report.as_uri()]
    page.close()


def test_the_trained_score_is_above_the_random_one(chromium, report):
    page = chromium.new_page()
    page.goto(report.as_uri())
    rows = {row.split()[0]: float(row.split()[2]) for row in page.locator("table").first.inner_text().splitlines()[1:]}
    assert rows["after"] > rows["random"]
    page.close()
