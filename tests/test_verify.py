"""A whole database proved: real episodes pass, tampering by SQL is found and named, whoever does the work."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from task_app import verify
from task_app.core.errors import ConfigError, PolicyError, StoreError, TaskAppError
from task_app.core.types import (
    AssistantMessage,
    Completion,
    DecisionRequest,
    Episode,
    StepRewardFlags,
    StepRewardsMode,
    ToolCall,
)
from task_app.rollout import Limits, plan_groups, play
from task_app.store import TraceStore
from task_app.verify import verify_database
from tests.conftest import crafter_spec, scripted
from tests.known_traces import write_known

DEATH: dict[str, Any] = {"min_actions_per_decision": 50, "max_actions_per_decision": 50}


@dataclass
class Player:
    """Says fixed answers in turn, over and over; raises instead at a turn of `fails_at`."""

    answers: Sequence[AssistantMessage]
    fails_at: int = 0
    name: str = "player"
    version: str = "1"
    batched: bool = False
    ended: list[str] = field(default_factory=list)

    def decide(self, requests: Sequence[DecisionRequest]) -> list[Completion]:
        if requests[0].turn == self.fails_at:
            raise PolicyError("the endpoint is gone", retryable=False)
        return [Completion(self.answers[r.turn % len(self.answers)], f"c{r.turn}", "m", 9, 2, 0.1) for r in requests]

    def end_episode(self, episode_id: str) -> None:
        self.ended.append(episode_id)


def call(text: str) -> AssistantMessage:
    return AssistantMessage("so …", (ToolCall("interact_many", text),), "tool_calls")


MIXED = (call('{"actions": ["do", "noop"]}'), call('{"actions": ["do"'), AssistantMessage("I rest \ud83d."))


def episodes() -> Iterator[Episode]:
    """Every way an episode is made and ends, once; e0 is an expert's with achievements in it."""
    made = [
        *_played(scripted(crafter_spec(), "expert"), [0, 1], limit=8),
        *_played(scripted(crafter_spec()), [2], mode="off"),
        *_played(scripted(crafter_spec(history_calls=3)), [3], mode="env_sparse", history_calls=3),
        *_played(scripted(crafter_spec(**DEATH)), [3], limit=40, **DEATH),
        *_played(scripted(crafter_spec(max_steps=12)), [4], max_steps=12),
        *_played(Player(MIXED), [5]),
        *_played(Player([MIXED[1]]), [6], failures=2),
        *_played(Player(MIXED, fails_at=4), [7]),
    ]
    gone = replace(made[-1], status="aborted", cause="interrupted")
    unborn = replace(made[-1], decisions=(), tools=(), cause="task app cannot be reached")
    for index, episode in enumerate((*made, gone, unborn)):
        yield replace(episode, episode_id=f"e{index}", run_id=f"run-{index // 4}", member=index)


def _played(
    policy: Any, seeds: Sequence[int], *, limit: int = 5, failures: int = 0, mode: StepRewardsMode | None = None,
    **options: Any,
) -> list[Episode]:  # fmt: skip
    flags = StepRewardFlags() if mode is None else StepRewardFlags(mode)
    plans = plan_groups(seeds, 1, run_id="run")
    return play(plans, crafter_spec(**options), policy, Limits(limit, failures), flags, lambda episode: None)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verify") / "t.db"
    with TraceStore.open(path) as store:
        for episode in episodes():
            store.write_episode(episode)
    return path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    """A copy of the database, to be tampered with."""
    return Path(shutil.copy(original, tmp_path / "copy.db"))


def tamper(path: Path, sql: str, *parameters: Any) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(sql, parameters).rowcount > 0
        connection.commit()


def set_text(path: Path, episode: str, turn: int, change: Callable[[str], str], *, rehash: bool) -> None:
    """Change the text of one prompt's user message, its hash too when told."""
    with closing(sqlite3.connect(path)) as connection:
        key, text = connection.execute(
            """SELECT messages.id, message FROM messages, decisions, episodes
               WHERE episodes.id = episode AND episode_id = ? AND turn = ?
               AND messages.id = json_extract(prompt, '$[1]')""",
            (episode, turn),
        ).fetchone()
        new = change(text)
        assert new != text
        connection.execute("UPDATE messages SET message = ? WHERE id = ?", (new, key))
        if rehash:
            digest = hashlib.sha256(new.encode()).hexdigest()[:32]
            connection.execute("UPDATE messages SET hash = ? WHERE id = ?", (digest, key))
        connection.commit()


def only_failure(path: Path) -> tuple[str, str, str]:
    """(episode, kind, sentence) of the one episode that fails."""
    report = verify_database(path)
    assert not report.passed
    ((episode, kind, sentence),) = [(f.episode_id, f.verdict.kind, f.verdict.sentence) for f in report.failed]
    assert report.counts == {"ok": 10, kind: 1}
    return episode, kind, sentence


class TestHonest:
    def test_every_way_an_episode_is_made_and_ends_passes(self, original):
        made = list(episodes())
        assert [(e.status, e.cause) for e in made][3:] == [
            ("truncated", "max_decisions"),
            ("ok", "terminated"),
            ("truncated", "max_steps"),
            ("truncated", "max_decisions"),
            ("truncated", "max_parse_failures"),
            ("infra_error", "the endpoint is gone"),
            ("aborted", "interrupted"),
            ("infra_error", "task app cannot be reached"),
        ]
        report = verify_database(original)
        assert report.counts == {"ok": 11}
        assert report.passed
        assert report.decisions == sum(len(e.decisions) for e in made)
        assert report.steps == sum(len(e.steps) for e in made)
        assert sum(e.outcome or 0 for e in made[:2]) > 2, "the experts must have achieved something"

    def test_the_file_is_only_read(self, path):
        before = path.read_bytes()
        verify_database(path)
        assert path.read_bytes() == before

    def test_episodes_made_by_hand_are_told_from_played_ones(self, tmp_path):
        with TraceStore.open(tmp_path / "known.db") as store:
            write_known(store)
        report = verify_database(tmp_path / "known.db")
        assert {failed.episode_id for failed in report.failed} == {
            "night-1a", "night-1b", "night-2a", "night-2b", "day-1", "day-2", "base-1", "base-2"
        }  # fmt: skip
        assert report.counts == {"observation": 8}

    def test_episodes_of_an_older_text_pass_with_a_note(self, path):
        tamper(path, "UPDATE episodes SET prompt_hash = 'older' WHERE episode_id = 'e0'")
        report = verify_database(path)
        assert report.passed
        assert report.counts == {"ok": 10, "ok, texts not compared": 1}
        assert [row[:2] for row in report.table()] == [("ok", 10), ("ok, texts not compared", 1)]


# Where e0 (an expert's) got its first wood, and what stands there.
EVENT = "episode = (SELECT id FROM episodes WHERE episode_id = 'e0') AND name = 'collect_wood'"
E0 = "episode = (SELECT id FROM episodes WHERE episode_id = 'e0')"
FIRST = f"step = (SELECT min(step) FROM events WHERE {EVENT}) AND {E0}"
RECORD = f"turn = (SELECT min(turn) FROM events WHERE {EVENT}) AND {E0}"

TAMPERING = [
    ("reward", r"turn \d, step \d+: reward 0.0 stored, 1.0 replayed", f"UPDATE steps SET reward = 0.0 WHERE {FIRST}"),
    ("event", r"turn \d, step \d+: events 'collect_diamond' stored, 'collect_wood' replayed",
     f"UPDATE events SET name = 'collect_diamond' WHERE {FIRST}"),
    ("event", r"turn 1, step 0: events 'wake_up' stored, none replayed",
     "INSERT INTO events SELECT id, 0, 0, 1, 'wake_up' FROM episodes WHERE episode_id = 'e0'"),
    ("event", r"events none stored, 'collect_wood' replayed", f"DELETE FROM events WHERE {FIRST}"),
    ("action", r"turn \d, step \d+: action 'noop' stored, the answer asks for 'do'",
     f"UPDATE steps SET action = 'noop' WHERE {FIRST}"),
    ("action", r"action 'fly' stored", f"UPDATE steps SET action = 'fly' WHERE {FIRST}"),
    ("action", r"turn 1: parse failure 'bad_json' stored, the answer's is none",
     f"UPDATE decisions SET failure_reason = 'bad_json', failure_detail = '' WHERE turn = 1 AND {E0}"),
    ("action", r"turn 8: 4 actions stored, the answer asks for 5 and the world had not ended",
     f"DELETE FROM steps WHERE step = (SELECT max(step) FROM steps WHERE {E0}) AND {E0}"),
    ("damaged", r"step 3 is missing, 4 stands in its place", f"DELETE FROM steps WHERE step = 3 AND {E0}"),
    ("damaged", r"turn 3 is missing, 4 stands in its place", f"DELETE FROM decisions WHERE turn = 3 AND {E0}"),
    ("damaged", r"decision_rewards has a row of turn 9, the episode has 8 decisions",
     f"UPDATE decision_rewards SET turn = 9 WHERE turn = 8 AND {E0}"),
    ("decision_rewards", r"turn \d: ach_delta 2 stored, 1 replayed",
     f"UPDATE decision_rewards SET ach_delta = 2 WHERE {RECORD}"),
    ("decision_rewards", r"turn \d: unique none stored, 'collect_wood' replayed",
     f"UPDATE decision_rewards SET unique_events = '[]' WHERE {RECORD}"),
    ("decision_rewards", r"turn 2: no decision record stored", f"DELETE FROM decision_rewards WHERE turn = 2 AND {E0}"),
    ("decision_rewards", r"turn 1: a decision record stored, mode off has none",
     "UPDATE episodes SET step_rewards_mode = 'off' WHERE episode_id = 'e0'"),
    ("end", r"status 'ok' stored, 'truncated' replayed", "UPDATE episodes SET status = 'ok' WHERE episode_id = 'e0'"),
    ("end", r"outcome 9.0 stored, \d.0 replayed", "UPDATE episodes SET outcome = 9 WHERE episode_id = 'e0'"),
    ("end", r"terminated True stored, False replayed",
     "UPDATE episodes SET terminated = 1 WHERE episode_id = 'e0'"),
    ("end", r"turn 1, step 0: truncated True stored, False replayed",
     f"UPDATE steps SET truncated = 1 WHERE step = 0 AND {E0}"),
    ("totals", r"unique_delta 9 stored, \d counted", "UPDATE episodes SET unique_delta = 9 WHERE episode_id = 'e0'"),
    ("totals", r"environment_return 0.5 stored", "UPDATE episodes SET environment_return = .5 WHERE episode_id = 'e0'"),
    ("totals", r"prompt_tokens 7 stored, none counted",
     "UPDATE episodes SET prompt_tokens = 7 WHERE episode_id = 'e0'"),
    ("totals", r"model 'gpt' stored, 'expert' counted", "UPDATE episodes SET model = 'gpt' WHERE episode_id = 'e0'"),
    ("unverifiable", r"unknown task app 'crafty'; did you mean 'crafter'\?",
     "UPDATE episodes SET app = 'crafty' WHERE episode_id = 'e0'"),
    ("unverifiable", r"made by crafter version '0'; crafter version '1' is installed",
     "UPDATE episodes SET app_version = '0' WHERE episode_id = 'e0'"),
    ("unverifiable", r"max_step\b.*did you mean",
     """UPDATE episodes SET options = '{"max_step":3}' WHERE episode_id = 'e0'"""),
    ("unverifiable", r"the world of seed -1 cannot be made", "UPDATE episodes SET seed = -1 WHERE episode_id = 'e0'"),
    ("damaged", r"cannot be read: JSONDecodeError", "UPDATE episodes SET options = '{' WHERE episode_id = 'e0'"),
    ("damaged", r"it cannot be read: Could not decode to UTF-8",
     f"UPDATE steps SET action = CAST(x'ff' AS TEXT) WHERE step = 2 AND {E0}"),
    ("damaged", r"steps.reward holds a value of type str", f"UPDATE steps SET reward = 'much' WHERE step = 2 AND {E0}"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "sentence", "sql"), TAMPERING, ids=[f"{k}: {s}" for k, _, s in TAMPERING])
def test_tampering_is_found_and_named(path, kind, sentence, sql):
    tamper(path, sql)
    episode, found, said = only_failure(path)
    assert (episode, found) == ("e0", kind)
    assert re.search(sentence, said), said


class TestTexts:
    def test_a_changed_prompt_does_not_fit_its_hash(self, path):
        set_text(path, "e0", 2, lambda text: text.replace("health 9", "health 8"), rehash=False)
        episode, kind, sentence = only_failure(path)
        assert (episode, kind) == ("e0", "damaged")
        assert "turn 2: the text of message" in sentence

    def test_nor_does_a_forged_hash_help_it(self, path):
        set_text(path, "e0", 2, lambda text: text.replace("health 9", "health 8"), rehash=True)
        episode, kind, sentence = only_failure(path)
        assert (episode, kind) == ("e0", "observation")
        assert "health 8" in sentence.split(" stored, ")[0]
        assert "health 9" in sentence.split(" stored, ")[1]

    def test_another_seed_is_another_world(self, path):
        tamper(path, "UPDATE episodes SET seed = seed + 1 WHERE episode_id = 'e0'")
        assert only_failure(path)[:2] == ("e0", "observation")

    def test_a_longer_limit_is_another_prompt(self, path):
        tamper(path, "UPDATE episodes SET max_decisions = 9 WHERE episode_id = 'e0'")
        assert only_failure(path)[:2] == ("e0", "observation")


FLIPPED = {
    "steps": ("episode", "step", "turn", "action", "reward", "terminated", "truncated"),
    "events": ("episode", "step", "ordinal", "turn", "name"),
    "decision_rewards": ("episode", "turn", "ach_delta", "unique_delta", "all_events", "unique_events"),
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "t.db"
    with TraceStore.open(path) as store:
        for index, episode in enumerate(_played(scripted(crafter_spec(), "expert"), [0, 1], limit=6)):
            store.write_episode(replace(episode, episode_id=f"s{index}"))
    return path


class TestAnyValue:
    @settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_a_value_flipped_anywhere_is_found(self, small, tmp_path, data):
        table = data.draw(st.sampled_from(sorted(FLIPPED)))
        column = data.draw(st.sampled_from(FLIPPED[table]))
        path = Path(shutil.copy(small, tmp_path / "flipped.db"))
        with closing(sqlite3.connect(path)) as connection:
            rows = connection.execute(f"SELECT * FROM {table}").fetchall()
            row = rows[data.draw(st.integers(0, len(rows) - 1))]
            names = [info[1] for info in connection.execute(f"PRAGMA table_info({table})")]
            new = data.draw(_other(column, row[names.index(column)]))
            where = " AND ".join(f"{name} = ?" for name in names)
            try:
                changed = connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (new, *row))
            except sqlite3.IntegrityError:
                return  # the key is taken: such a file cannot be
            assert changed.rowcount == 1
            connection.commit()
        report = verify_database(path)
        assert not report.passed, (table, column, row, new)
        assert not {"unverifiable"} & set(report.counts)


def _other(column: str, value: Any) -> st.SearchStrategy[Any]:
    """Values that stand for something else than `value` in the column."""
    if column in ("terminated", "truncated"):
        return st.just(1 - value)
    if column == "episode":
        return st.just(3 - value)
    if isinstance(value, int):
        return st.integers(-2, 60).filter(lambda new: new != value)
    if isinstance(value, float):
        return st.floats(-2, 2).filter(lambda new: new != value)
    if column.endswith("_events"):
        names = st.lists(st.sampled_from(["collect_wood", "place_table", "wake_up"]), max_size=2).map(json.dumps)
        return names.filter(lambda new: json.loads(new) != json.loads(value))
    names = ["noop", "do", "move_left", "fly", "collect_wood", "place_table", "dig", ""]
    return st.sampled_from([name for name in names if name != value])


class TestChoice:
    def test_a_run_or_an_episode(self, path):
        tamper(path, "UPDATE episodes SET outcome = 9 WHERE episode_id = 'e5'")
        assert verify_database(path, run_id="run-0").counts == {"ok": 4}
        assert verify_database(path, run_id="run-1").counts == {"ok": 3, "end": 1}
        assert verify_database(path, episode_id="e5").counts == {"end": 1}
        assert verify_database(path, episode_id="e10").counts == {"ok": 1}

    @pytest.mark.parametrize(
        ("choice", "said"),
        [
            ({"run_id": "run-9"}, r"no episodes of run 'run-9' \(did you mean 'run-\d'\?\) in .*copy.db"),
            ({"run_id": "zzz"}, r"no episodes of run 'zzz' in "),
            ({"episode_id": "x"}, r"no episode 'x' in "),
            ({"episode_id": "e"}, r"11 episodes in .* begin with 'e'; give more of the id"),
            ({"episode_id": "e0", "run_id": "run-1"}, r"episode 'e0' belongs to run 'run-0', not to 'run-1'"),
        ],
    )
    def test_what_is_not_there_is_said(self, path, choice, said):
        with pytest.raises(StoreError, match=said):
            verify_database(path, **choice)

    def test_superseded_episodes_are_left_out_unless_named(self, path):
        tamper(path, "UPDATE episodes SET superseded = 1, outcome = 9 WHERE episode_id = 'e0'")
        assert verify_database(path).counts == {"ok": 10}
        assert verify_database(path, episode_id="e0").counts == {"end": 1}

    def test_an_empty_or_missing_database_proves_nothing(self, tmp_path):
        with pytest.raises(StoreError, match="does not exist"):
            verify_database(tmp_path / "none.db")
        TraceStore.open(tmp_path / "empty.db").close()
        with pytest.raises(StoreError, match=r"no episodes in .*empty\.db"):
            verify_database(tmp_path / "empty.db")

    def test_a_schema_that_is_not_ours_is_no_pass(self, path):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("ALTER TABLE steps ADD COLUMN extra VARCHAR")
        with pytest.raises(StoreError, match="cannot be read: 'VARCHAR'"):
            verify_database(path)

    def test_a_locked_file_is_no_verdict(self, path, monkeypatch):
        monkeypatch.setattr("task_app.store.database.BUSY_TIMEOUT_S", 0.05)
        with closing(sqlite3.connect(path, isolation_level=None)) as holder:
            holder.execute("PRAGMA locking_mode = EXCLUSIVE")
            holder.execute("BEGIN EXCLUSIVE")
            with pytest.raises(StoreError, match="locked"):
                verify_database(path)

    def test_a_file_that_is_cut_short_is_no_pass(self, path):
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(StoreError):
            verify_database(path)


class TestWorkers:
    @pytest.fixture
    def advanced(self) -> list[int]:
        return []

    @pytest.fixture
    def bar(self, advanced) -> Any:
        @contextmanager
        def open_bar(total: int) -> Iterator[Callable[[], None]]:
            advanced.append(total)
            yield lambda: advanced.append(1)

        return open_bar

    def test_two_make_the_report_of_one(self, path, bar, advanced, monkeypatch):
        monkeypatch.setattr(verify, "_CHUNK", 2)
        tamper(path, "UPDATE episodes SET outcome = 9 WHERE episode_id IN ('e0', 'e6', 'e3')")
        tamper(path, "UPDATE steps SET reward = 3 WHERE step = 1 AND episode = 5")
        one, two = verify_database(path), verify_database(path, workers=2, progress=bar)
        assert one == two
        assert json.dumps(one.to_json()) == json.dumps(two.to_json())
        assert [failed.episode_id for failed in one.failed] == ["e0", "e3", "e4", "e6"]
        assert advanced == [11, *[1] * 11]

    def test_a_killed_worker_is_an_error_not_a_pass(self, path, monkeypatch):
        monkeypatch.setattr(verify, "_CHUNK", 1)
        killed = []

        @contextmanager
        def killing(total: int) -> Iterator[Callable[[], None]]:
            def advance() -> None:
                for child in multiprocessing.active_children():
                    killed.append(child.pid)
                    child.kill()

            yield advance

        many = replace(next(episodes()), run_id="many")
        with TraceStore.open(path) as store:
            for index in range(200):
                store.write_episode(replace(many, episode_id=f"m{index}"))
        with pytest.raises(TaskAppError, match="a worker process died"):
            verify_database(path, workers=2, progress=killing)
        assert killed

    def test_none_is_refused(self, path):
        with pytest.raises(ConfigError, match="workers must be at least 1, got 0"):
            verify_database(path, workers=0)


def test_a_report_says_everything_in_json(path):
    tamper(path, "UPDATE steps SET reward = 3 WHERE step = 1 AND episode = 1")
    report = verify_database(path, run_id="run-0").to_json()
    (failed,) = report.pop("failed")
    assert report.pop("counts") == dict.fromkeys(verify.KINDS, 0) | {"ok": 3, "reward": 1}
    assert failed == {
        "episode_id": "e0", "run_id": "run-0", "kind": "reward", "turn": 1, "step": 1,
        "sentence": "turn 1, step 1: reward 3.0 stored, 0.0 replayed",
    }  # fmt: skip
    assert (report["episodes"], report["passed"]) == (4, False)
    assert report["steps"] == sum(len(e.steps) for e in list(episodes())[1:4])
