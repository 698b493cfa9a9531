"""Pictures: the same bytes as of the world while it was played, and never of anything else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from task_app.core.task import Picture, Snapshot, TaskSpec
from task_app.core.types import Decision, Episode, StepRecord, StepResult, TaskRef
from task_app.rollout.episode import run_actions
from task_app.server.viewer import frames
from task_app.server.viewer.frames import EVERY, Film, Films, NotShown
from task_app.store import TraceStore
from tests.toy_app import ToyApp, ToyOptions

pytestmark = pytest.mark.anyio


def pictures_while_played(spec: TaskSpec, episode: Episode) -> list[bytes]:
    """The picture after reset and after every step of one world that is played on."""
    env = spec.app.make_env(spec.options)
    env.reset(episode.task.seed)

    def look() -> bytes:
        picture = spec.app.picture(env)
        assert picture is not None
        return picture.data

    seen = [look()]
    for step in episode.steps:
        env.step(step.action)
        seen.append(look())
    return seen


def with_actions(episode: Episode, spec: TaskSpec, count: int) -> Episode:
    """The episode as if its one decision had run `count` actions, as far as the world goes on."""
    env = spec.app.make_env(spec.options)
    env.reset(episode.task.seed)
    pattern = ("move_left", "move_up", "noop", "move_right", "move_down", "do", "sleep")
    actions = [pattern[index % len(pattern)] for index in range(count)]
    steps = tuple(record for record, _ in run_actions(env, actions, 0))
    decision: Decision = replace(episode.decisions[0], steps=steps)
    return replace(episode, decisions=(decision,))


@pytest.fixture
def one(play_scripted) -> Episode:
    return play_scripted(range(4, 5), 1, policy="random", max_decisions=6)[0]


def test_every_picture_is_the_one_of_the_world_that_was_played(spec_of, one):
    expected = pictures_while_played(spec_of(), one)
    assert len(set(expected)) > 5
    film = Film(one)
    assert len(film) == len(expected) - 1
    assert [film.picture(step).data for step in range(len(expected))] == expected
    assert film.picture(0).media_type == "image/png"


def test_scrubbing_anywhere_gives_the_same_pictures_in_any_order(spec_of, one):
    episode = with_actions(one, spec_of(), 3 * EVERY + 7)
    expected = pictures_while_played(spec_of(), episode)
    count = len(expected) - 1
    assert count > EVERY  # the world must last beyond a snapshot for this to mean anything
    film = Film(episode)
    order = [count, 0, EVERY, EVERY - 1, EVERY + 1, 1, count - 1, count // 2, count, EVERY, 0, 2]
    for step in order:
        assert film.picture(step).data == expected[step], step
    filled = Film(episode)
    filled.fill()
    assert [filled.picture(step).data for step in reversed(range(count + 1))] == expected[::-1]


def test_snapshots_are_few_whatever_the_length(spec_of, one, monkeypatch):
    monkeypatch.setattr(frames, "MOST_SNAPSHOTS", 4)
    monkeypatch.setattr(frames, "EVERY", 3)
    episode = with_actions(one, spec_of(), 60)
    film = Film(episode)
    film.fill()
    assert 3 <= len(film._kept) <= 5
    expected = pictures_while_played(spec_of(), episode)
    assert [film.picture(step).data for step in range(len(film) + 1)] == expected


def test_only_the_films_last_looked_at_are_kept(one, monkeypatch):
    monkeypatch.setattr(frames, "MOST_FILMS", 2)
    made, films = [], Films()

    def load(name: str) -> Callable[[], Episode]:
        return lambda: made.append(name) or one

    for name in ("a", "b", "a", "c", "a", "b"):
        films.film(name, load(name))
    assert made == ["a", "b", "c", "b"]


def test_many_threads_looking_at_once_see_the_right_pictures(spec_of, one):
    episode = with_actions(one, spec_of(), 2 * EVERY)
    expected = pictures_while_played(spec_of(), episode)
    film, wrong = Film(episode), []

    def look(stride: int) -> None:
        for step in range(0, len(expected), stride):
            if film.picture(step).data != expected[step]:
                wrong.append(step)

    threads = [threading.Thread(target=look, args=(stride,)) for stride in (1, 3, 7)]
    threads.append(threading.Thread(target=film.fill))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


class CountingWorld:
    """A world that is its number of steps, and counts the steps it is asked for."""

    asked = 0

    def reset(self, seed: int) -> int:
        self.place = 0
        return self.place

    def step(self, action: str) -> StepResult:
        CountingWorld.asked += 1
        self.place += 1
        return StepResult(self.place, 0.0, False, False)

    def snapshot(self) -> Snapshot:
        return Snapshot("counting", str(self.place).encode())

    def restore(self, snapshot: Snapshot) -> int:
        self.place = int(snapshot.payload)
        return self.place


class CountingApp(ToyApp):
    def make_env(self, options: Any) -> Any:
        return CountingWorld()

    def picture(self, env: Any) -> Picture:
        return Picture("text/plain", str(env.place).encode())


def test_no_picture_of_a_long_episode_is_far_from_a_snapshot(one, monkeypatch):
    monkeypatch.setattr(frames, "make_spec", lambda name, options: TaskSpec(CountingApp(), ToyOptions()))
    steps = tuple(StepRecord(index, "stay", 0.0, False, False) for index in range(5_000))
    long = replace(one, task=TaskRef("toy", "1", {}, 0), decisions=(replace(one.decisions[0], steps=steps),))
    film = Film(long)
    assert film.picture(5_000).data == b"5000"
    film.fill()
    asked = CountingWorld.asked
    for step in (0, 4_999, 3, 2_524, 5_000, 49, 50, 51, 4_951, 1):
        assert film.picture(step).data == str(step).encode()
        assert CountingWorld.asked - asked <= EVERY
        asked = CountingWorld.asked


@pytest.mark.parametrize(
    "change",
    [
        lambda step: replace(step, action="noop" if step.action != "noop" else "move_left"),
        lambda step: replace(step, action="fly"),
        lambda step: replace(step, reward=step.reward + 1),
        lambda step: replace(step, events=(*step.events, "eat_cow")),
        lambda step: replace(step, terminated=True),
    ],
    ids=["action", "unknown action", "reward", "event", "end"],
)
def test_from_a_tampered_step_on_there_is_a_sentence_instead(spec_of, play_scripted, change):
    expert = play_scripted(range(1), 1, policy="expert", max_decisions=12)[0]
    at = next(step.step for step in expert.steps if step.events)  # a change of action shows in what it caused
    turn = next(one.turn for one in expert.decisions if any(step.step == at for step in one.steps))
    decisions = list(expert.decisions)
    steps = tuple(change(step) if step.step == at else step for step in decisions[turn - 1].steps)
    decisions[turn - 1] = replace(decisions[turn - 1], steps=steps)
    tampered = replace(expert, decisions=tuple(decisions))
    film = Film(tampered)
    before = pictures_while_played(spec_of(), expert)
    assert film.picture(at).data == before[at]
    last = len(tampered.steps)
    with pytest.raises(NotShown, match="replay"):
        film.picture(last)
    with pytest.raises(NotShown, match="replay"):
        film.picture(last)
    assert film.picture(at).data == before[at]  # a failure does not spoil what comes before


def test_an_episode_of_another_version_or_of_no_app_here_is_refused(one):
    older = replace(one, task=replace(one.task, version="0"))
    with pytest.raises(NotShown, match="it was played with crafter 0, and 1 is installed"):
        Film(older)
    with pytest.raises(NotShown, match="unknown task app 'chess'"):
        Film(replace(one, task=TaskRef("chess", "1", {}, 1)))
    with pytest.raises(NotShown, match="size"):
        Film(replace(one, task=replace(one.task, options={"size": 3})))
    with pytest.raises(NotShown, match="cannot be replayed"):
        Film(replace(one, task=replace(one.task, seed=-1)))


def test_an_app_without_pictures_says_so(one, toy, monkeypatch):
    monkeypatch.setattr(frames, "make_spec", lambda name, options: toy())
    with pytest.raises(NotShown, match="Toy draws no pictures") as refused:
        Film(replace(one, task=TaskRef("toy", "1", {}, 0)))
    assert refused.value.nothing


async def test_frames_over_http_can_be_kept_for_ever_by_their_key(viewing, spec_of, one, tmp_path):
    db = tmp_path / "t.db"
    with TraceStore.open(db) as store:
        store.write_episode(one)
    expected = pictures_while_played(spec_of(), one)
    async with viewing(db) as http:
        found = (await http.get(f"/viewer/api/episode?id={one.episode_id}")).json()["picture"]
        assert (found["state"], found["note"]) == ("ready", "")
        url = f"/viewer/api/frame?id={one.episode_id}&key={found['key']}&step="
        for step, data in enumerate(expected):
            answer = await http.get(f"{url}{step}")
            assert (answer.status_code, answer.content) == (200, data)
            assert answer.headers["content-type"] == "image/png"
            assert "immutable" in answer.headers["cache-control"]
            assert answer.headers["cache-control"].startswith("private")
        tag = (await http.get(f"{url}3")).headers["etag"]
        again = await http.get(f"{url}3", headers={"If-None-Match": tag})
        assert (again.status_code, again.content) == (304, b"")
        assert (await http.get(f"{url}4", headers={"If-None-Match": tag})).content == expected[4]
        other = await http.get(f"/viewer/api/frame?id={one.episode_id}&step=3&key=other")
        assert (other.content, "immutable" in other.headers["cache-control"]) == (expected[3], False)
        assert (await http.get(f"{url}{len(expected)}")).status_code == 422
        assert (await http.get("/viewer/api/frame?id=nobody&step=0")).status_code == 404


async def test_what_cannot_be_replayed_is_a_sentence_over_http(viewing, known):
    async with viewing(known) as http:
        refused = await http.get("/viewer/api/frame?id=night-1a&step=6")
        assert refused.status_code == 409
        assert refused.json()["error"]["message"] == "the replay departs from what is stored at action 2 (do)"
        with TraceStore.open(known) as store:
            first = store.episode("night-1a")
            store.write_episode(replace(first, episode_id="old", task=replace(first.task, version="0")))
        picture = (await http.get("/viewer/api/episode?id=old")).json()["picture"]
        assert (picture["state"], picture["key"]) == ("refused", "")
        assert "played with crafter 0" in picture["note"]
