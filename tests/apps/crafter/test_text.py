"""The view as words: exact for worked examples, complete, compact, and made of known words only."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from task_app.apps.crafter.rules import ACHIEVEMENTS, INVENTORY, MATERIALS, VITALS
from task_app.apps.crafter.text import FAILURES, failure, render
from task_app.apps.crafter.view import CrafterView
from task_app.core.task import TurnContext
from task_app.core.types import ParseFailure, PastDecision, StepRewardFlags
from task_app.rollout import Limits, plan_groups, play


def say(
    view: CrafterView, history: Any = (), *, turn: int = 1, limit: int = 20, calls: int = 3, clip: int = 160
) -> str:
    return render(view, history, TurnContext(turn, limit, {}), history_calls=calls, history_clip=clip)


def line(view: CrafterView, label: str, **arguments: Any) -> str:
    """The rest of the line that begins with `label`."""
    (found,) = (text for text in say(view, **arguments).splitlines() if text.startswith(label))
    return found.removeprefix(label).strip(" :")


class TestGolden:
    def test_the_first_moment(self, make_view):
        view = make_view({(-1, 0): "tree", (3, -2): "water", (-2, 0): "tree"}, {(4, 3): "cow"})
        assert say(view) == (
            "decisions left 20\n"
            "vitals: health 9 food 9 drink 9 energy 9\n"
            "sky: bright, awake\n"
            "facing: down grass\n"
            "around: left tree, right grass, up grass, down grass\n"
            "near: tree left 1, water right 3 up 2, cow right 4 down 3\n"
            "have: nothing\n"
            "done: none"
        )

    def test_night_in_a_cave_at_the_border_of_the_world(self, make_view):
        tiles = {(x, y): "path" for x in range(-4, 5) for y in range(-3, 4)}
        tiles |= {(-1, y): None for y in range(-3, 4)}
        tiles |= {(1, 0): "lava", (0, -1): "iron", (2, 2): "diamond", (0, 2): "table", (3, 3): "sand"}
        items = {"health": 3, "food": 0, "drink": 7, "energy": 2, "wood": 2, "stone_pickaxe": 1}
        view = make_view(
            tiles,
            {(0, 1): "zombie", (2, 0): "arrow", (3, 0): "skeleton"},
            items,
            {"wake_up": 3, "collect_wood": 1},
            facing=(-1, 0),
            daylight=0.1,
        )
        before = make_view(tiles, items=items | {"health": 5, "drink": 6})
        past = [
            PastDecision(1, ("move_left", "move_left", "do"), ("collect_wood",), before, view),
            PastDecision(2, (), (), view, view, ParseFailure("bad_json", "…")),
        ]
        assert say(view, past, turn=3) == (
            "decisions left 18\n"
            "vitals: health 3 food 0 drink 7 energy 2\n"
            "sky: dark, awake\n"
            "facing: left edge\n"
            "around: left edge, right lava, up iron, down zombie\n"
            "near: iron up 1, lava right 1, zombie down 1, arrow right 2, table down 2, skeleton right 3, "
            "diamond right 2 down 2, sand right 3 down 3\n"
            "have: wood 2, stone_pickaxe 1\n"
            "done: collect_wood, wake_up\n"
            "last: move_left 2 do 1 -> collect_wood 1, health -2, drink +1\n"
            "last: unreadable bad_json"
        )

    def test_a_sleeper_beside_a_ripe_plant(self, make_view):
        view = make_view(things={(1, 0): "ripe_plant", (2, 0): "plant"}, facing=(1, 0), sleeping=True, daylight=0.45)
        assert line(view, "sky") == "dim, asleep"
        assert line(view, "facing") == "right ripe_plant"
        assert line(view, "near") == "ripe_plant right 1, plant right 2"


class TestComplete:
    """Every field of the view that a player would act on changes the text."""

    @pytest.mark.parametrize("vital", VITALS)
    def test_each_vital(self, make_view, vital):
        for amount in range(10):
            assert f"{vital} {amount}" in line(make_view(items={vital: amount}), "vitals")

    @pytest.mark.parametrize("item", INVENTORY)
    def test_each_item(self, make_view, item):
        assert line(make_view(items={item: 7}), "have") == f"{item} 7"

    @pytest.mark.parametrize("name", ACHIEVEMENTS)
    def test_each_achievement(self, make_view, name):
        assert line(make_view(done={name: 2}), "done") == name

    @pytest.mark.parametrize("kind", [m for m in MATERIALS if m != "grass"])
    def test_each_material_anywhere_in_view(self, make_view, kind):
        for place in ((-4, -3), (4, 3), (2, 1)):
            assert line(make_view({place: kind}), "near").startswith(f"{kind} ")
        assert line(make_view({(0, -1): kind}), "around") == f"left grass, right grass, up {kind}, down grass"

    @pytest.mark.parametrize("kind", ["cow", "zombie", "skeleton", "arrow", "plant", "ripe_plant"])
    def test_each_object_anywhere_in_view_and_in_front(self, make_view, kind):
        assert line(make_view(things={(-4, 3): kind}), "near") == f"{kind} left 4 down 3"
        assert line(make_view(things={(0, 1): kind}), "facing") == f"down {kind}"
        assert f"down {kind}" in line(make_view(things={(0, 1): kind}), "around")

    @pytest.mark.parametrize(
        ("facing", "said"), [((-1, 0), "left"), ((1, 0), "right"), ((0, -1), "up"), ((0, 1), "down")]
    )
    def test_the_facing_tile(self, make_view, facing, said):
        assert line(make_view({facing: "coal"}, facing=facing), "facing") == f"{said} coal"

    @pytest.mark.parametrize(
        ("daylight", "said"),
        [(1.0, "bright"), (0.6, "bright"), (0.59, "dim"), (0.3, "dim"), (0.29, "dark"), (0.0, "dark")],
    )
    def test_the_sky(self, make_view, daylight, said):
        assert line(make_view(daylight=daylight), "sky") == f"{said}, awake"

    def test_the_nearest_of_a_kind_by_walking_distance(self, make_view):
        view = make_view({(3, 0): "water", (2, 2): "water", (-4, 0): "water"})
        assert line(view, "near") == "water right 3"

    def test_bare_ground_only_where_none_is_adjacent(self, make_view):
        assert "sand right 2" in line(make_view({(2, 0): "sand"}), "near")
        assert "sand" not in line(make_view({(2, 0): "sand", (1, 0): "sand"}), "near")
        assert line(make_view(), "near") == "nothing"

    def test_the_tile_below_an_object_is_still_there(self, make_view):
        assert line(make_view({(2, 0): "sand"}, {(2, 0): "cow"}), "near") == "cow right 2, sand right 2"

    @pytest.mark.parametrize(("turn", "left"), [(1, 20), (20, 1)])
    def test_the_decisions_left_count_the_one_to_be_made(self, make_view, turn, left):
        assert line(make_view(), "decisions left", turn=turn) == str(left)


class TestHistory:
    @pytest.fixture
    def past(self, make_view):
        """Make an earlier decision of `actions`, after which the player stands at `offset`."""

        def make(*actions: str, offset=(0, 0), events=(), failure=None, **items: int) -> PastDecision:
            after = make_view(offset=offset, items=items)
            return PastDecision(1, actions, tuple(events), make_view(), after, failure)

        return make

    @pytest.mark.parametrize("calls", [0, 1, 2, 5])
    def test_the_last_so_many_calls_oldest_first(self, make_view, past, calls):
        history = [past("noop"), past("do"), past("sleep")]
        lines = [text for text in say(make_view(), history, calls=calls).splitlines() if text.startswith("last")]
        expected = ["last: noop 1 -> nothing", "last: do 1 -> nothing", "last: sleep 1 -> nothing"]
        assert lines == expected[max(0, 3 - calls) :]

    @pytest.mark.parametrize(
        ("actions", "changes", "said"),
        [
            (["move_left", "move_left", "do"], {"offset": (-2, 0)}, "move_left 2 do 1 -> moved left 2"),
            (["move_up", "do", "move_up"], {"offset": (1, -3)}, "move_up 1 do 1 move_up 1 -> moved right 1 up 3"),
            (["do"], {"events": ["collect_wood", "collect_wood"]}, "do 1 -> collect_wood 2"),
            (["do"], {"events": ["wake_up", "eat_cow"], "food": 9}, "do 1 -> eat_cow 1, wake_up 1"),
            (["sleep"], {"health": 2, "energy": 8}, "sleep 1 -> health -7, energy -1"),
            (["noop"], {"wood": 3}, "noop 1 -> nothing"),
        ],
    )
    def test_a_call_is_told_with_what_it_did(self, make_view, past, actions, changes, said):
        assert line(make_view(), "last", history=[past(*actions, **changes)]) == said

    @pytest.mark.parametrize(
        ("clip", "said"),
        [
            (len("move_left 1 do 1 -> collect_wood 1"), "move_left 1 do 1 -> collect_wood 1"),
            (33, "move_left 1 do 1 -> collect_wood …"),
            (32, "move_left 1 do 1 -> collect_wood …"),
            (31, "move_left 1 do 1 -> …"),
            (20, "move_left 1 do 1 -> …"),
            (19, "move_left 1 do 1 -> …"),
            (18, "move_left 1 do 1 …"),
            (3, "…"),
        ],
    )
    def test_a_long_call_is_clipped_at_a_word(self, make_view, past, clip, said):
        history = [past("move_left", "do", events=["collect_wood"])]
        assert line(make_view(), "last", history=history, clip=clip) == said

    @pytest.mark.parametrize("reason", FAILURES)
    def test_an_unreadable_answer_is_told_by_its_reason(self, make_view, past, reason):
        history = [past(failure=failure(reason, "what exactly was wrong"))]
        assert line(make_view(), "last", history=history) == f"unreadable {reason}"

    def test_a_reason_of_no_known_word_cannot_be_made(self):
        with pytest.raises(AssertionError, match="odd"):
            failure("odd", "")


class TestWords:
    @pytest.mark.parametrize("policy", ["random", "expert"])
    @pytest.mark.parametrize("calls", [1, 3])
    def test_every_word_is_in_the_vocabulary_or_a_number_beyond_99(self, spec_of, player, policy, calls):
        spec = spec_of(history_calls=calls, max_actions_per_decision=20)
        plans = plan_groups(range(300, 302), 1, run_id="r")
        episodes = play(plans, spec, player(spec, policy), Limits(120), StepRewardFlags(), lambda episode: None)
        texts = [d.messages[1]["content"] for e in episodes for d in e.decisions]
        words = {word for text in texts for word in text.replace(",", "").replace(":", "").split()}
        unknown = {word for word in words if word not in spec.app.vocabulary(spec.options)}
        assert all(word.isdigit() and int(word) >= 100 for word in unknown), unknown
        assert "120" in unknown

    def test_extreme_numbers_are_words_too(self, spec_of, make_view):
        spec = spec_of()
        far = PastDecision(
            1, ("move_left",) * 50, (), make_view(), make_view(offset=(-50, 50), items={"health": 0, "food": 0})
        )
        back = PastDecision(2, ("do",), ("collect_wood",) * 50, far.after, make_view())
        broken = [PastDecision(3, (), (), far.before, far.before, failure(reason, "")) for reason in FAILURES]
        text = say(make_view(), [far, back, *broken], calls=50, limit=99)
        words = text.replace(",", "").replace(":", "").split()
        assert {"-9", "+9", "50"} <= set(words)
        assert set(words) <= set(spec.app.vocabulary(spec.options))

    def test_a_typical_observation_has_40_to_80_words(self, play_scripted):
        episodes = play_scripted(range(300, 306), 1, max_decisions=20, history_calls=1)
        lengths = [len(d.messages[1]["content"].split()) for e in episodes for d in e.decisions]
        assert 40 <= statistics.median(lengths) <= 80
        assert max(lengths) <= 120
