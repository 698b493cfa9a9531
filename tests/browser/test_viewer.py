"""The viewer in a real browser: look, filter, step, scrub, come back; by mouse and by keyboard, light and dark.

Screenshots are kept in the folder named by TASK_APP_ARTIFACTS, else thrown away with the test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from task_app.core.types import Episode, StepRewardFlags
from task_app.rollout import Limits, plan_groups, play
from task_app.store import TraceStore
from tests.browser.looking import Looking, showing
from tests.conftest import crafter_spec, scripted

NASTY = "a/b\"'><script>alert(1)</script>"


def episodes_of(policy: str, run: str, member: int = 0) -> list[Episode]:
    """Three seeds, once each, with ids told by policy and seed."""
    spec = crafter_spec()
    played = play(
        plan_groups(range(3), 1, run_id=run),
        spec,
        scripted(spec, policy),
        Limits(20),
        StepRewardFlags(),
        lambda episode: None,
    )
    return [
        replace(one, episode_id=f"{run}-{policy}-{one.task.seed}-{member}", group_id=f"s{one.task.seed}", member=member)
        for one in played
    ]


@pytest.fixture(scope="module")
def database(tmp_path_factory) -> Path:
    """Groups of four on three seeds (two random, an expert, a planner), and an id made of markup."""
    path = tmp_path_factory.mktemp("viewer") / "demo.db"
    with TraceStore.open(path) as store:
        store.write_run("demo", "rollout", {})
        for member, policy in enumerate(("random", "expert", "planner", "random")):
            for episode in episodes_of(policy, "demo", member):
                store.write_episode(episode)
        expert = store.episode("demo-expert-0-1")
        store.write_episode(replace(expert, episode_id=NASTY, run_id=NASTY, group_id=NASTY))
        store.write_advantages("demo", 0, {expert.episode_id: [turn / 10 - 0.9 for turn in range(20)]})
    return path


@pytest.fixture(scope="module")
def address(database) -> Iterator[str]:
    with showing(database) as page:
        yield page


@pytest.fixture
def looking(chromium, address) -> Iterator[Callable[..., Looking]]:
    """Open a watched page; at its end it must have had no trouble and have asked nobody else."""
    opened: list[Looking] = []

    def open_page(**settings: Any) -> Looking:
        settings = {"viewport": {"width": 1360, "height": 900}, **settings}
        opened.append(Looking(chromium.new_page(**settings), address))
        return opened[-1]

    yield open_page
    for one in opened:
        one.page.close()
        assert one.trouble == []
        assert one.asked
        assert {urlsplit(url).netloc for url in one.asked} == {urlsplit(address).netloc}


def episode_in(database: Path, name: str) -> Episode:
    with TraceStore.open(database, read_only=True) as store:
        return store.episode(name)


def test_from_the_runs_to_a_picture_by_keys_and_back(looking, database):
    view = looking()
    view.at()
    page = view.page
    assert page.locator("tbody tr").count() == 2
    page.get_by_role("link", name="demo", exact=True).click()
    view.settled()
    assert page.locator("tbody tr").count() == 12
    page.get_by_label("Policy").select_option("expert")
    page.wait_for_selector("text=3 episodes of 12")
    page.locator("select[name=achievement]").select_option("make_stone_pickaxe")
    page.wait_for_selector(".chip >> text=make_stone_pickaxe")
    assert view.query() == {"run": ["demo"], "policy": ["expert"], "achievement": ["make_stone_pickaxe"]}
    wanted = [name for name in ("demo-expert-0-1", "demo-expert-1-1", "demo-expert-2-1")
              if episode_in(database, name).event_counts["make_stone_pickaxe"]]  # fmt: skip
    assert [row.inner_text() for row in page.locator("tbody th").all()] == wanted
    page.get_by_role("link", name="demo-expert-0-1").click()
    view.settled()
    start = view.at_step(0)
    assert view.turn() == 1

    episode = episode_in(database, "demo-expert-0-1")
    seen = {start}
    for step in range(1, 13):
        page.keyboard.press("ArrowRight")
        seen.add(view.at_step(step))
        within = next(one.turn for one in episode.decisions if any(done.step == step - 1 for done in one.steps))
        assert view.turn() == within
        action = page.locator(".actions [aria-current=step]").inner_text().split()
        assert action[0] == episode.steps[step - 1].action
    assert len(seen) > 6  # the picture changes, though not with every step
    page.keyboard.press("ArrowLeft")
    view.at_step(11)

    page.go_back()
    view.settled()
    assert view.query() == {"run": ["demo"], "policy": ["expert"], "achievement": ["make_stone_pickaxe"]}
    assert page.get_by_label("Policy").input_value() == "expert"
    page.go_back()
    page.go_back()
    view.settled()
    assert page.locator("tbody tr").count() == 12


def test_every_key_of_the_timeline(looking, database):
    view = looking()
    view.at("?episode=demo-expert-0-1")
    view.at_step(0)
    episode, page = episode_in(database, "demo-expert-0-1"), view.page
    counts = [len(one.steps) for one in episode.decisions]
    slider = page.get_by_role("slider", name="Timeline of the episode")
    assert slider.evaluate("node => node === document.activeElement")
    page.keyboard.press("ArrowDown")
    assert (view.turn(), slider.get_attribute("aria-valuenow")) == (2, str(counts[0]))
    page.keyboard.press("Shift+ArrowRight")
    assert (view.turn(), slider.get_attribute("aria-valuenow")) == (3, str(sum(counts[:2])))
    page.keyboard.press("Shift+ArrowLeft")
    page.keyboard.press("ArrowUp")
    assert view.turn() == 1
    page.keyboard.press("End")
    view.at_step(sum(counts))
    assert view.turn() == 20
    page.keyboard.press("ArrowRight")
    assert slider.get_attribute("aria-valuenow") == str(sum(counts))
    page.keyboard.press("Home")
    view.at_step(0)
    page.keyboard.press("Space")
    page.wait_for_function("() => +document.querySelector('[role=slider]').ariaValueNow >= 2")  # it plays
    page.get_by_role("button", name="Pause").wait_for()
    page.keyboard.press("Space")
    page.get_by_role("button", name="Play").wait_for()
    stopped = slider.get_attribute("aria-valuenow")
    page.wait_for_timeout(600)  # more than two steps would have taken
    assert slider.get_attribute("aria-valuenow") == stopped
    assert re.match(r"decision \d+ of 20, after \w+, reward", slider.get_attribute("aria-valuetext"))
    page.keyboard.press("ArrowDown")
    place = slider.get_attribute("aria-valuenow")
    page.keyboard.press("]")  # at once, before the address was written
    page.wait_for_selector("h1 >> text=demo-planner-0-2")
    page.go_back()
    view.at_step(int(place))
    page.keyboard.press("]")
    page.wait_for_selector("h1 >> text=demo-planner-0-2")
    page.keyboard.press("g")
    page.wait_for_selector("h1 >> text=Group s0")


def test_scrubbing_with_the_mouse(looking):
    view = looking()
    view.at("?episode=demo-expert-0-1")
    view.at_step(0)
    page = view.page

    def middle_of(turn: int) -> tuple[float, float]:
        box = page.locator(f".timeline [data-turn='{turn}'] .band").bounding_box()
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    page.mouse.move(*middle_of(4))
    page.mouse.down()
    assert view.turn() == 4
    page.mouse.move(*middle_of(15), steps=12)
    assert view.turn() == 15
    page.mouse.up()
    page.mouse.move(*middle_of(2))
    assert view.turn() == 15
    page.locator(".actions button").nth(1).click()
    assert page.locator(".actions [aria-current=step]").evaluate("node => node.parentElement.previousSibling !== null")


def test_a_deep_link_is_where_one_was(looking):
    view = looking()
    view.at("?episode=demo-expert-0-1")
    view.at_step(0)
    for _ in range(7):
        view.page.keyboard.press("ArrowRight")
    before = view.at_step(7)
    turn = view.turn()
    view.page.wait_for_url("**step=7")
    view.page.reload()
    assert view.at_step(7) == before
    assert view.turn() == turn
    view.page.keyboard.press("ArrowDown")  # what the next decision was shown, though no further step has run
    view.page.wait_for_url(f"**turn={turn + 1}")
    view.page.reload()
    view.settled()
    assert view.turn() == turn + 1


def test_bars_and_marks_are_the_episodes_own(looking, database):
    view = looking()
    view.at("?episode=demo-expert-0-1")
    page, episode = view.page, episode_in(database, "demo-expert-0-1")
    records = [one.rewards for one in episode.decisions if one.rewards]
    kinds = page.locator(".timeline .bar").evaluate_all("bars => bars.map(bar => bar.classList[1])")
    assert kinds == ["gain" if record.unique_delta else "nil" for record in records]
    tall = page.locator(".timeline .bar").evaluate_all("bars => bars.map(bar => +bar.getAttribute('height'))")
    best = max(records, key=lambda record: record.unique_delta).turn
    assert tall[best - 1] == max(tall)
    fresh = page.locator(".timeline .event.fresh").evaluate_all("marks => marks.map(mark => mark.dataset.event)")
    assert sorted(fresh) == sorted(episode.event_counts)
    labels = page.locator(".timeline .label").all_inner_texts() or page.locator(".timeline .label").all_text_contents()
    assert len(labels) >= len(fresh) - 2
    minus = page.locator(".timeline .advantage.minus").count()
    plus = page.locator(".timeline .advantage.plus").count()
    assert (minus, plus) == (9, 11)


def test_a_group_side_by_side_on_one_axis(looking):
    view = looking()
    view.at("?run=demo&group=s0")
    page = view.page
    page.wait_for_selector(".members .timeline")
    strips = page.locator(".members .timeline")
    assert strips.count() == 4
    places = [strips.nth(index).locator("[data-turn='7'] .band").bounding_box()["x"] for index in range(strips.count())]
    assert len(set(places)) == 1
    links = page.locator(".members a.id")
    assert [link.get_attribute("title") for link in links.all()] == [
        "demo-random-0-0",
        "demo-expert-0-1",
        "demo-planner-0-2",
        "demo-random-0-3",
    ]
    view.keep("group-light")
    strips.nth(1).locator("[data-turn='5'] .bar").click()
    view.settled()
    assert view.query()["episode"] == ["demo-expert-0-1"]
    assert view.turn() == 5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(looking, scheme):
    view = looking(color_scheme=scheme)
    view.at("?episode=demo-expert-0-1&step=33")
    view.at_step(33)
    page = view.page
    color = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert color == {"light": "rgb(246, 246, 243)", "dark": "rgb(14, 17, 19)"}[scheme]
    assert page.locator(".screen img").evaluate("image => getComputedStyle(image).imageRendering") == "pixelated"
    view.keep(f"episode-{scheme}")


def test_text_of_a_stranger_stays_text(looking):
    view = looking()
    view.at("?view=episodes")
    page = view.page
    page.locator(f'a.id[title="{NASTY.replace(chr(34), chr(92) + chr(34))}"]').click()
    view.at_step(0)
    assert page.locator("h1").inner_text() == NASTY
    assert view.query()["episode"] == [NASTY]
    assert page.locator("#trail").inner_text().count("<script>alert(1)</script>") == 3
    page.keyboard.press("ArrowRight")
    view.at_step(1)
    page.get_by_text("Facts").click()
    assert NASTY in page.locator(".facts dd").first.inner_text()
    page.keyboard.press("Escape")
    page.locator("#trail a").nth(2).click()
    page.wait_for_selector(".members .timeline")
    assert page.locator("h1").inner_text() == f"Group {NASTY}"
    assert page.evaluate("document.querySelectorAll('main script').length") == 0


def test_a_narrow_page_needs_no_sideways_scrolling(looking):
    view = looking(viewport={"width": 400, "height": 800})
    for query in ("", "?run=demo", "?run=demo&view=groups", "?run=demo&group=s0", "?episode=demo-expert-0-1&step=9"):
        view.at(query)
        assert view.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), query


def test_every_control_has_a_name_and_the_keys_are_told(looking):
    view = looking()
    view.at("?episode=demo-expert-0-1")
    page = view.page
    unnamed = "nodes => nodes.filter(node => !(node.getAttribute('aria-label') || node.innerText.trim())).length"
    assert page.locator("button, a, [role=slider]").evaluate_all(unnamed) == 0
    page.keyboard.press("?")
    assert page.get_by_role("dialog").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#help").is_visible()


def test_an_unknown_episode_is_a_sentence(chromium, address):
    page = chromium.new_page()
    page.goto(f"{address}?episode=nobody")
    page.wait_for_selector("h1 >> text=Nothing to show")
    assert "no episode with this id" in page.locator("main").inner_text()
    page.close()


def test_with_a_key_one_logs_in_and_is_where_one_wanted_to_be(chromium, database):
    with showing(database, ENVIRONMENT_API_KEY="ek-browser") as address:
        context = chromium.new_context(color_scheme="dark")
        page = context.new_page()
        page.goto(f"{address}?episode=demo-expert-0-1&step=5")
        page.get_by_label("Key").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        page.get_by_text("That is not the key.").wait_for()
        page.get_by_label("Key").fill("ek-browser")
        page.keyboard.press("Enter")
        page.wait_for_selector(".screen img[data-step='5']")
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("Key").wait_for()
        page.goto(f"{address}?run=demo")
        page.get_by_label("Key").wait_for()
        context.close()
