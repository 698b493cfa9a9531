"""What a command does with episodes: play into a database, score beside random, collect reward vectors."""

from __future__ import annotations

import json
import sqlite3

import pytest

from task_app.config import Config, load_config
from task_app.core.errors import ConfigError, StoreError
from task_app.runs import collect_database, evaluate_beside_random, new_run_id, play_config, score
from task_app.store import TraceStore


@pytest.fixture
def config(tmp_path):
    """Make a config of four short random episodes into `t.db`, with overrides."""

    def make(**overrides) -> Config:
        small = {
            "rollout.seeds": "0:2",
            "rollout.group_size": 2,
            "rollout.max_decisions": 6,
            "rollout.trace_db": str(tmp_path / "t.db"),
            "eval.seeds": "1000000:1000003",
        }
        return load_config(None, small | {key.replace("__", "."): value for key, value in overrides.items()})

    return make


def run(config: Config, run_id: str = "r1"):
    return play_config(config, run_id=run_id, command="rollout", progress=lambda episode: None, environ={})


def test_run_ids_are_new_each_time():
    ids = {new_run_id("eval") for _ in range(20)}
    assert len(ids) > 15
    assert all(run_id.startswith("eval-") for run_id in ids)


class TestPlaying:
    def test_episodes_config_and_run_are_in_the_database(self, config, tmp_path):
        seen = []
        wanted = config(seed=3)
        episodes = play_config(wanted, run_id="r1", command="rollout", progress=seen.append, environ={})
        assert [(e.task.seed, e.member) for e in episodes] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert len(seen) == 4
        with TraceStore.open(tmp_path / "t.db", read_only=True) as store:
            assert list(store.episodes(run_id="r1")) == episodes
            ((run_id, command, stored),) = store.query("SELECT run_id, command, config FROM runs")
        assert (run_id, command) == ("r1", "rollout")
        assert Config.model_validate_json(stored) == wanted

    def test_running_again_makes_other_episodes_of_the_same_bytes(self, config, same_bytes):
        first, second = run(config()), run(config())
        assert same_bytes(first, second)
        assert not {e.episode_id for e in first} & {e.episode_id for e in second}

    def test_another_seed_is_other_noise_in_the_same_worlds(self, config):
        first, second = run(config()), run(config(seed=1))
        assert [e.task for e in first] == [e.task for e in second]
        assert [e.steps for e in first] != [e.steps for e in second]

    def test_a_wrong_name_is_refused_before_any_file_is_made(self, config, tmp_path):
        for wrong in ({"task__app": "craftr"}, {"policy__name": "randon"}, {"policy__name": "embedded"}):
            with pytest.raises(ConfigError):
                run(config(**wrong))
        assert list(tmp_path.iterdir()) == []


class TestScores:
    def test_a_policy_is_scored_on_held_out_worlds_beside_random(self, config):
        scores = evaluate_beside_random(config(policy__name="expert"), progress=lambda episode: None, environ={})
        assert [entry.policy for entry in scores] == ["expert", "random"]
        assert [(entry.outcome.n, entry.failed) for entry in scores] == [(3, 0), (3, 0)]
        expert, by_chance = (entry.outcome.mean for entry in scores)
        assert expert is not None
        assert by_chance is not None
        assert expert > by_chance

    def test_the_held_out_worlds_are_those_of_the_config(self, config, tmp_path):
        evaluate_beside_random(config(), progress=lambda episode: None, environ={})
        with TraceStore.open(tmp_path / "t.db", read_only=True) as store:
            episodes = list(store.episodes())
        assert [(e.task.seed, e.member, e.policy) for e in episodes] == [
            (s, 0, "random") for s in range(1_000_000, 1_000_003)
        ]

    def test_the_noise_is_that_of_the_evaluation_not_of_training(self, config, tmp_path):
        def steps(seed: int, noise: int):
            one = config(seed=seed, eval__sampling_seed=noise, rollout__trace_db=str(tmp_path / f"{seed}-{noise}.db"))
            evaluate_beside_random(one, progress=lambda episode: None, environ={})
            with TraceStore.open(one.rollout.trace_db, read_only=True) as store:
                return [episode.steps for episode in store.episodes()]

        assert steps(seed=0, noise=5) == steps(seed=9, noise=5) != steps(seed=0, noise=6)

    def test_failed_episodes_are_counted_and_not_averaged(self, play_one, speaker, toy_app):
        good = play_one(["right right"])
        toy_app.calls["step"], toy_app.faults = 0, {"step": range(1, 99)}
        entry = score([good, play_one(["right"])])
        assert (entry.outcome.n, entry.outcome.mean, entry.failed) == (1, 8.0, 1)
        json.dumps(entry.to_json(), allow_nan=False)

    def test_no_episode_has_no_score(self):
        with pytest.raises(ValueError, match="no episodes"):
            score([])

    def test_only_failed_episodes_have_no_mean(self, play_one, toy_app):
        toy_app.faults = {"reset": range(1, 99)}
        entry = score([play_one(["right"])])
        assert (entry.outcome.n, entry.failed) == (0, 1)
        json.dumps(entry.to_json(), allow_nan=False)


class TestCollecting:
    @pytest.fixture
    def recorded(self, config):
        run(config())
        return config

    def test_lines_metrics_and_file_agree(self, recorded, tmp_path):
        output = tmp_path / "new" / "r.jsonl"
        collected = collect_database(recorded(), run_id=None, output=output)
        assert output.read_text() == collected.text
        rows = [json.loads(line) for line in collected.text.splitlines()]
        assert collected.rows == len(rows) == collected.metrics.episodes == 4
        assert collected.metrics.reward_sum == sum(sum(row["rewards"]) for row in rows)
        assert {row["mode"] for row in rows} == {"decision_stepwise"}
        assert dict(collected.totals())["rows"] == 4
        assert [turn for turn, *_ in collected.by_turn()] == [1, 2, 3, 4, 5, 6]
        assert list(output.parent.iterdir()) == [output]

    def test_twice_is_the_same_bytes(self, recorded, tmp_path):
        for name in ("a", "b"):
            collect_database(recorded(), run_id=None, output=tmp_path / name)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

    def test_the_flags_of_the_config_decide_not_those_recorded(self, recorded):
        off = collect_database(recorded(training__step_rewards_mode="off"), run_id=None, output=None)
        sparse = collect_database(recorded(training__step_rewards_mode="env_sparse"), run_id=None, output=None)
        row = json.loads(off.text.splitlines()[0])
        assert row["rewards"][-1] == row["outcome"]
        assert len(json.loads(sparse.text.splitlines()[0])["rewards"]) == 30

    def test_one_run_of_several(self, recorded):
        run(recorded(rollout__seeds="5:6"), "r2")
        collected = collect_database(recorded(), run_id="r2", output=None)
        assert {json.loads(line)["seed"] for line in collected.text.splitlines()} == {5}

    @pytest.mark.parametrize("run_id", ["nope", None])
    def test_nothing_rewarded_is_told(self, recorded, tmp_path, run_id):
        if run_id is None:
            with sqlite3.connect(tmp_path / "t.db") as connection:
                connection.execute("UPDATE episodes SET status = 'aborted', outcome = NULL")
        with pytest.raises(ConfigError, match="carries a reward"):
            collect_database(recorded(), run_id=run_id, output=tmp_path / "r.jsonl")
        assert not (tmp_path / "r.jsonl").exists()

    def test_broken_records_are_told_with_the_database_and_leave_the_old_file(self, recorded, tmp_path):
        output = tmp_path / "r.jsonl"
        output.write_text("old")
        with sqlite3.connect(tmp_path / "t.db") as connection:
            connection.execute("DELETE FROM decision_rewards WHERE turn = 3")
        with pytest.raises(StoreError, match=r"t\.db: no decision record for turn 3"):
            collect_database(recorded(), run_id=None, output=output)
        assert output.read_text() == "old"
        assert collect_database(recorded(training__step_rewards_mode="off"), run_id=None, output=None).rows == 4

    def test_off_does_not_read_records_at_all(self, recorded, tmp_path):
        with sqlite3.connect(tmp_path / "t.db") as connection:
            connection.execute("UPDATE decision_rewards SET all_events = '{{'")
        assert collect_database(recorded(rollout__step_rewards_enabled=False), run_id=None, output=None).rows == 4
        with pytest.raises(StoreError, match="cannot be read"):
            collect_database(recorded(), run_id=None, output=None)

    def test_a_missing_database_is_not_made(self, config, tmp_path):
        with pytest.raises(StoreError, match="does not exist"):
            collect_database(config(), run_id=None, output=None)
        assert list(tmp_path.iterdir()) == []

    def test_an_output_that_cannot_be_written_is_told_and_leaves_nothing(self, recorded, tmp_path):
        folder = tmp_path / "folder"
        folder.mkdir()
        for output in (folder, tmp_path / "t.db" / "r.jsonl"):
            with pytest.raises(ConfigError, match="cannot write") as caught:
                collect_database(recorded(), run_id=None, output=output)
            assert caught.value.field == "output"
        assert not [found for found in tmp_path.iterdir() if found.name.startswith(".")]
