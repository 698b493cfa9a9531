"""What a teacher would do in the states a policy reached: the episode untouched, the rows exact, stored or live."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from task_app.config import load_config
from task_app.core.errors import ConfigError, EnvError, StoreError
from task_app.core.types import ParseFailure, StepRewardFlags
from task_app.policies import ReplayPolicy
from task_app.relabel import check_relabel, play_relabelled, relabel_database
from task_app.rollout import Limits, plan_groups, play
from task_app.rollout.relabel import Relabelling, make_teacher, relabel_episode
from task_app.store import TraceStore


def relabelled(spec, policy, teacher, *, limits=Limits(6), seeds=range(2)):
    """Episodes and rows of a policy that a teacher listens to."""
    listening = Relabelling(policy, spec, make_teacher(spec, teacher))
    plans = plan_groups(seeds, 2, run_id="run")
    episodes = play(plans, spec, listening, limits, StepRewardFlags(), lambda episode: None, concurrency=3)
    return episodes, [row for episode in episodes for row in listening.take(episode)], listening


@pytest.mark.parametrize("teacher", ["expert", "planner", "random"])
def test_the_episode_stays_byte_for_byte_what_it_was(spec_of, player, play_scripted, same_bytes, teacher):
    if teacher not in spec_of().app.baselines(spec_of().options):
        pytest.skip(f"the task app has no {teacher}")
    plain = play_scripted(max_decisions=6)
    episodes, rows, _ = relabelled(spec_of(), player(spec_of(), "random"), teacher)
    assert same_bytes(plain, episodes)
    assert len(rows) == sum(len(episode.decisions) for episode in episodes)


def test_a_row_is_the_prompt_seen_the_teachers_answer_and_where_it_is_from(spec_of, player):
    spec = spec_of()
    episodes, rows, listening = relabelled(spec, player(spec, "random"), "expert")
    decisions = [(episode, decision) for episode in episodes for decision in episode.decisions]
    other = 0
    for (episode, decision), row in zip(decisions, rows, strict=True):
        assert list(row) == ["messages", "tools", "metadata"]
        assert row["messages"][:-1] == list(decision.messages)
        assert row["tools"] == list(episode.tools)
        (call,) = row["messages"][-1]["tool_calls"]
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
        metadata = row["metadata"]
        assert metadata["relabelled_by"] == "expert"
        assert metadata["policy"] == "random"
        assert metadata["prompt_hash"] == spec.prompt_hash
        assert (metadata["episode_id"], metadata["turn"]) == (episode.episode_id, decision.turn)
        assert metadata["seed"] == episode.task.seed
        same = row["messages"][-1] == decision.completion.message.to_wire()
        assert metadata["agreed"] == same
        other += not same
    assert other > 0
    assert (listening.asked, listening.agreed) == (len(rows), len(rows) - other)


def test_a_teacher_that_plays_itself_agrees_with_itself(spec_of, player):
    """It is shown every observation in order: without its memory, or shown one twice, it would answer otherwise."""
    spec = spec_of()
    episodes, rows, listening = relabelled(spec, player(spec, "expert"), "expert", limits=Limits(12))
    assert listening.agreed == listening.asked == len(rows) == sum(len(episode.decisions) for episode in episodes)


@pytest.mark.parametrize("teacher", ["expert", "planner", "random"])
def test_stored_episodes_give_the_same_rows(spec_of, player, teacher):
    spec = spec_of()
    if teacher not in spec.app.baselines(spec.options):
        pytest.skip(f"the task app has no {teacher}")
    episodes, rows, _ = relabelled(spec, player(spec, "random"), teacher, limits=Limits(5, max_env_steps=13))
    assert any(episode.cause == "max_env_steps" for episode in episodes)
    again = [row for episode in episodes for row in relabel_episode(episode, spec, make_teacher(spec, teacher))]
    assert again == rows


def test_an_answer_that_did_not_parse_is_relabelled_too(spec_of, player, play_scripted):
    spec = spec_of()
    (episode,) = play_scripted(range(1), 1, max_decisions=3)
    first = episode.decisions[0].completion
    broken = replace(first, message=replace(first.message, tool_calls=()))
    decisions = (replace(episode.decisions[0], completion=broken), *episode.decisions[1:])
    policy = ReplayPolicy([replace(episode, decisions=decisions)])
    listening = Relabelling(policy, spec, make_teacher(spec, "expert"))
    (played,) = play(
        plan_groups(range(1), 1, run_id="r"), spec, listening, Limits(3), StepRewardFlags(), lambda e: None
    )
    assert isinstance(played.decisions[0].failure, ParseFailure)
    rows = listening.take(played)
    assert rows[0]["metadata"]["agreed"] is False
    assert rows == relabel_episode(played, spec, make_teacher(spec, "expert"))


def test_an_episode_that_no_longer_plays_as_it_did_is_refused(spec_of, play_scripted):
    spec, (episode,) = spec_of(), play_scripted(range(1), 1, max_decisions=3)
    teacher = make_teacher(spec, "expert")
    second = replace(episode.decisions[1], messages=({"role": "user", "content": "else"},))
    with pytest.raises(EnvError, match="turn 2 shows another prompt"):
        relabel_episode(replace(episode, decisions=(episode.decisions[0], second)), spec, teacher)
    with pytest.raises(EnvError, match="turn 1 runs other actions"):
        relabel_episode(replace(episode, decisions=(replace(episode.decisions[0], steps=()),)), spec, teacher)
    beyond = replace(episode.decisions[2], turn=4)
    with pytest.raises(EnvError, match="was never reached"):
        relabel_episode(replace(episode, decisions=(*episode.decisions, beyond)), spec, teacher)


class TestCommands:
    @pytest.fixture
    def config(self, tmp_path):
        """Four short random episodes."""
        small = {"rollout.seeds": "0:2", "rollout.group_size": 2, "rollout.max_decisions": 5}
        return load_config(None, small | {"rollout.trace_db": str(tmp_path / "t.db")})

    def test_live_and_stored_write_the_same_file(self, config, tmp_path):
        live, stored = tmp_path / "live.jsonl", tmp_path / "new/stored.jsonl"
        seen = []
        episodes, done = play_relabelled(config, "expert", live, run_id="r", progress=seen.append, environ={})
        assert (len(seen), done.episodes, done.rows) == (4, 4, sum(len(episode.decisions) for episode in episodes))
        again = relabel_database(tmp_path / "t.db", "expert", stored, run_id="r")
        assert live.read_bytes() == stored.read_bytes()
        assert (again.rows, again.agreed) == (done.rows, done.agreed)
        by_policy = Counter(json.loads(line)["metadata"]["policy"] for line in live.read_text().splitlines())
        assert by_policy == {"random": done.rows}

    def test_what_cannot_work_is_refused_before_anything_is_made(self, config, tmp_path):
        with pytest.raises(ConfigError, match=r"'chat' cannot teach crafter: .*expert.*random"):
            play_relabelled(config, "chat", tmp_path / "o", run_id="r", progress=print, environ={})
        with pytest.raises(ConfigError, match="is a folder"):
            play_relabelled(config, "expert", tmp_path, run_id="r", progress=print, environ={})
        assert list(tmp_path.iterdir()) == []
        for teacher, output in (("expert", None), (None, tmp_path / "o")):
            with pytest.raises(ConfigError, match="needs both"):
                check_relabel(teacher, output, None)
        with pytest.raises(ConfigError, match="traces relabel"):
            check_relabel("expert", tmp_path / "o", "http://127.0.0.1:1")
        check_relabel(None, None, "http://127.0.0.1:1")

    def test_an_empty_or_foreign_database_is_told(self, config, tmp_path):
        play_relabelled(config, "expert", tmp_path / "o", run_id="r", progress=lambda e: None, environ={})
        with pytest.raises(ConfigError, match="run 'other' in .* holds no decision"):
            relabel_database(tmp_path / "t.db", "expert", tmp_path / "p", run_id="other")
        with TraceStore.open(tmp_path / "t.db") as store, store._transaction() as connection:
            connection.execute("UPDATE steps SET action = 'noop' WHERE step = 0 AND episode = 1 AND action != 'noop'")
            connection.execute("UPDATE steps SET action = 'sleep' WHERE step = 1 AND episode = 1 AND action = 'noop'")
            connection.execute("DELETE FROM steps WHERE step > 6 AND episode = 1")
        with pytest.raises(StoreError, match="made by another version or with other options"):
            relabel_database(tmp_path / "t.db", "expert", tmp_path / "p")
        assert not (tmp_path / "p").exists()


def test_the_commands_write_the_file_and_say_what_agreed(tmp_path):
    def command(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "task_app", *map(str, arguments)],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    played = command("rollout", "--seeds", "0", "--group-size", 1, "--max-decisions", 3, "--run-id", "r", "--trace-db",
                     tmp_path / "t.db", "--relabel", "expert", "--relabel-output", tmp_path / "live.jsonl")  # fmt: skip
    assert "expert agreed in" in played
    told = command("traces", "relabel", "--db", tmp_path / "t.db", "--teacher", "expert", "--output",
                   tmp_path / "stored.jsonl", "--json")  # fmt: skip
    assert json.loads(told)["rows"] == 3
    assert (tmp_path / "live.jsonl").read_bytes() == (tmp_path / "stored.jsonl").read_bytes()
