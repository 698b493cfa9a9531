"""What is remembered of earlier views: worked examples by hand, and a whole episode against a plain map."""

from __future__ import annotations

import pytest

from task_app.apps.crafter.engine import CrafterEnv
from task_app.apps.crafter.expert import ExpertAgent
from task_app.apps.crafter.landmarks import LANDMARKS, remembered
from task_app.apps.crafter.options import CrafterOptions
from task_app.apps.crafter.rules import MATERIALS
from task_app.apps.crafter.text import render
from task_app.core.task import TurnContext
from task_app.core.types import PastDecision


def past(*views) -> list[PastDecision]:
    """Decisions at which these views were shown."""
    return [PastDecision(turn, ("noop",), (), view, view) for turn, view in enumerate(views, 1)]


def test_nothing_is_remembered_at_first(make_view):
    assert remembered(make_view({(1, 0): "tree"}), []) == []


def test_a_place_out_of_sight_by_how_far_it_is_now(make_view):
    """A table one to the left of the start, from six tiles to the right and two down of it."""
    start = make_view({(-1, 0): "table"})
    assert remembered(make_view(offset=(6, 2)), past(start)) == [(9, "table", -7, -2)]


def test_the_nearest_of_each_kind_nearest_first(make_view):
    start = make_view({(-1, 0): "table", (-4, -3): "tree", (-2, 3): "tree", (4, 0): "coal"})
    away = make_view(offset=(0, 9))
    # tree: 4 + 12 = 16 or 2 + 6 = 8 · table: 1 + 9 = 10 · coal: 4 + 9 = 13
    assert remembered(away, past(start)) == [(8, "tree", -2, -6), (10, "table", -1, -9), (13, "coal", 4, -9)]


@pytest.mark.parametrize("kind", MATERIALS)
def test_only_what_stays_and_is_worth_going_back_to(make_view, kind):
    found = remembered(make_view(offset=(20, 0)), past(make_view({(0, 1): kind})))
    assert [name for _, name, _, _ in found] == ([kind] if kind in LANDMARKS else [])


def test_what_is_in_sight_is_not_remembered_as_well(make_view):
    start = make_view({(-1, 0): "tree"})
    assert remembered(make_view({(3, 3): "tree"}, offset=(20, 0)), past(start)) == []


def test_what_was_seen_to_be_gone_is_forgotten(make_view):
    """The tree was felled: the second view shows the place without it, the third is elsewhere."""
    first, second = make_view({(-1, 0): "tree"}), make_view(offset=(1, 0))
    assert remembered(make_view(offset=(20, 0)), past(first)) == [(21, "tree", -21, 0)]
    assert remembered(make_view(offset=(20, 0)), past(first, second)) == []


def test_what_the_present_view_shows_to_be_gone_is_forgotten(make_view):
    assert remembered(make_view(offset=(1, 0)), past(make_view({(-1, 0): "tree"}))) == []


def test_what_came_later_is_remembered(make_view):
    first, second = make_view(), make_view({(-1, 0): "table"})
    assert remembered(make_view(offset=(20, 0)), past(first, second)) == [(21, "table", -21, 0)]


def test_the_same_in_an_order_of_its_own_when_equally_near(make_view):
    start = make_view({(0, -3): "coal", (-3, 0): "coal", (3, 0): "iron"})
    found = remembered(make_view(offset=(0, 10)), past(start))
    assert found == [(13, "coal", -3, -10), (13, "iron", 3, -10)]


def test_the_text_has_the_line_where_something_is_remembered(make_view):
    def lines(view, history):
        return render(view, history, TurnContext(2, 20, {}), history_calls=0, history_clip=20).splitlines()

    start = make_view({(-1, 0): "table", (0, -3): "water"})
    assert "remembered: table left 7 up 2, water left 6 up 5" in lines(make_view(offset=(6, 2)), past(start))
    assert not any(line.startswith("remembered") for line in lines(start, past(start)))


def test_a_whole_episode_against_a_map_that_is_drawn_over():
    """The expert's play: a map over which each view is drawn, read back from where the player stands."""
    options = CrafterOptions(min_actions_per_decision=5)
    compared = 0
    for seed in range(3):
        env, agent = CrafterEnv(), ExpertAgent(options, seed)
        view, history = env.reset(seed), []
        drawn: dict[tuple[int, int], str | None] = {}
        for turn in range(1, 21):
            x0, y0 = view.offset
            drawn |= {(x0 + x, y0 + y): material for x, y, material in view.tiles()}
            expected: dict[str, int] = {}
            for (x, y), material in drawn.items():
                if material in LANDMARKS and material not in view.materials:
                    away = abs(x - x0) + abs(y - y0)
                    expected[material] = min(away, expected.get(material, away))
            found = remembered(view, history)
            assert {kind: away for away, kind, _, _ in found} == expected
            assert all(drawn[x0 + x, y0 + y] == kind for _, kind, x, y in found)
            compared += len(found)
            before = view
            for action in agent.act(view):
                view = env.step(action).observation
            history.append(PastDecision(turn, (), (), before, view))
    assert compared > 30
