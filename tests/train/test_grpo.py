"""The loop: repeatable, resumable bit for bit, honest about failures, and refusing what cannot work."""

import json

import pytest
from safetensors.torch import load_file

from task_app.core.errors import ConfigError, TrainError
from task_app.core.task import TaskSpec
from task_app.store import TraceStore
from task_app.train.checkpoint_folder import read_state
from task_app.train.grpo import run_training
from task_app.train.metrics import MetricsLog


class Killed(BaseException):
    """Stands for a kill: nothing may catch it."""


def train(config, spec, *, kill_at=None):
    """Run a config; `kill_at` (kind, update) kills it right after that line was written."""

    def progress(line):
        if (line["kind"], line["update"]) == kill_at:
            raise Killed

    with TraceStore.open(config.rollout.trace_db) as store:
        return run_training(config, spec, store, progress=progress)


def told(config, *kinds):
    """The log without what is allowed to differ between equal runs."""
    lines = MetricsLog(config.training.run_dir / "metrics.jsonl").lines()
    return [{key: value for key, value in line.items() if key != "machine"} for line in lines if line["kind"] in kinds]


def last_weights(result):
    return (result.checkpoint / "model.safetensors").read_bytes()


def test_training_twice_gives_the_same_metrics_and_weights(config_in, line, tmp_path):
    results = []
    for name in ("a", "b"):
        config = config_in(tmp_path / name)
        results.append((train(config, line), told(config, "start", "eval", "update")))
    assert results[0][1] == results[1][1]
    assert last_weights(results[0][0]) == last_weights(results[1][0])
    assert [(entry["kind"], entry["update"]) for entry in results[0][1]] == [
        ("start", 0), ("eval", 0), ("update", 1), ("update", 2), ("update", 3), ("eval", 3)
    ]  # fmt: skip


def test_another_seed_gives_another_run(config_in, line, tmp_path):
    runs = [train(config_in(tmp_path / str(seed), seed=seed), line) for seed in (0, 1)]
    assert last_weights(runs[0]) != last_weights(runs[1])


@pytest.mark.parametrize(
    "settings",
    [
        {"training__objective__kl_coefficient": 0.5},
        {"training__optimizer_steps_per_update": 2, "training__credit__scale": "group_rms"},
        {"training__step_rewards_mode": "env_sparse", "training__credit__estimator": "return_std"},
        {"training__step_rewards_mode": "off", "training__credit__estimator": "return_loo"},
        {"training__warmup_updates": 5, "training__credit__scale": "batch_rms"},
    ],
    ids=["kl", "steps", "env_sparse", "off", "warm-up"],
)
def test_six_updates_are_three_and_resume_and_three(config_in, line, tmp_path, settings):
    whole = config_in(tmp_path / "whole", training__updates=6, **settings)
    parts = config_in(tmp_path / "parts", training__updates=6, **settings)
    expected = train(whole, line)
    train(config_in(tmp_path / "parts", training__updates=3, **settings), line)
    resumed = train(parts, line)
    assert last_weights(resumed) == last_weights(expected)
    assert told(parts, "update") == told(whole, "update")
    assert told(parts, "eval")[-1] == told(whole, "eval")[-1]
    states = [read_state(result.checkpoint) for result in (resumed, expected)]
    assert states[0]["baseline"] == states[1]["baseline"]
    assert resumed.before == MetricsLog(resumed.metrics).lines()[1]


@pytest.fixture(scope="module")
def undisturbed(config_in, line, tmp_path_factory):
    """A run of six updates that nothing interrupts, with its config."""
    config = config_in(tmp_path_factory.mktemp("whole"), training__updates=6)
    return train(config, line), config


@pytest.mark.parametrize(
    "moment", [("start", 0), ("eval", 0), ("update", 2), ("update", 5), ("update", 6), ("eval", 6)]
)
def test_a_kill_anywhere_ends_in_the_same_run(config_in, line, undisturbed, tmp_path, moment):
    expected, expected_config = undisturbed
    config = config_in(tmp_path / "killed", training__updates=6)
    with pytest.raises(Killed):
        train(config, line, kill_at=moment)
    result = train(config, line)
    assert last_weights(result) == last_weights(expected)
    assert told(config, "start", "eval", "update") == told(expected_config, "start", "eval", "update")
    with TraceStore.open(config.rollout.trace_db) as store:
        counted = [(e.update, e.group_id, e.member) for e in store.episodes(run_id=result.run_id)]
        assert len(counted) == len(set(counted)) == 6 * 2 * 8
        assert len(list(store.episodes(run_id=f"{result.run_id}-eval"))) == 2 * 6


def test_a_finished_run_does_nothing_more(config_in, line, tmp_path):
    config = config_in(tmp_path)
    first = train(config, line)
    before = told(config, "eval", "update")
    again = train(config, line)
    assert (again.run_id, again.before, again.after) == (first.run_id, first.before, first.after)
    assert told(config, "eval", "update") == before


def test_other_settings_are_refused_with_their_keys(config_in, line, tmp_path):
    train(config_in(tmp_path), line)
    with pytest.raises(ConfigError, match=r"other settings: training\.credit\.gamma, training\.learning_rate"):
        train(config_in(tmp_path, training__learning_rate=0.5, training__credit__gamma=0.9), line)
    with pytest.raises(ConfigError, match="has 3 updates already"):
        train(config_in(tmp_path, training__updates=2), line)


def test_it_learns(config_in, line, tmp_path):
    config = config_in(tmp_path, training__updates=12, training__groups_per_update=4, eval__seeds="1000000:1000064")
    result = train(config, line)
    assert result.after["mean"] > result.before["low"] + 1
    assert result.after["mean"] > result.before["high"]


def test_the_log_says_what_happened(config_in, line, tmp_path):
    config = config_in(tmp_path, eval__every=2, rollout__group_size=4)
    result = train(config, line)
    assert [entry["update"] for entry in told(config, "eval")] == [0, 2, 3]
    start = told(config, "start")[0]
    assert start["step_rewards"]["mode"] == "decision_stepwise"
    assert start["credit"]["estimator"] == "rtg_alive_loo"
    assert "group_size is 4" in start["warnings"][0]
    with TraceStore.open(config.rollout.trace_db) as store:
        for entry in MetricsLog(result.metrics).lines():
            if entry["kind"] != "update":
                continue
            update = entry["update"]
            episodes = list(store.episodes(run_id=result.run_id, update=update))
            assert {episode.policy_version for episode in episodes} == {f"u{update - 1}"}
            assert entry["seeds"] == f"{2 * update - 2}:{2 * update}"
            uniques = sum(len(episode.event_counts) for episode in episodes)
            assert entry["reward/sum"] == entry["reward/unique_delta_sum"] == uniques > 0
            assert sum(entry["reward/by_turn"]) == uniques
            assert entry["mismatch/logp_max"] <= 1e-5
            seconds = entry["machine"]["seconds"]
            assert set(seconds) == {"world", "step", "text", "sampling", "store", "training", "total"}
            for episode in episodes:
                assert len(store.advantages(episode.episode_id)) == len(episode.decisions)
    assert json.loads((config.training.run_dir / "config.json").read_text())["training"]["updates"] == 3


def break_worlds(monkeypatch, spec, broken):
    """Make worlds whose seed is in `broken` crash at reset."""
    world = type(spec.app.make_env(spec.options))
    reset = world.reset

    def crash(self, seed):
        if seed in broken:
            raise OSError("no such world")
        return reset(self, seed)

    monkeypatch.setattr(world, "reset", crash)


def test_a_lost_group_is_dropped_and_counted(config_in, line, tmp_path, monkeypatch):
    break_worlds(monkeypatch, line, {1})
    config = config_in(tmp_path)
    result = train(config, line)
    first = told(config, "update")[0]
    assert list(first["failures/groups"]) == ["u000001-s0000000001"]
    assert first["failures/episodes"] == 8
    assert first["episodes"] == 8
    assert first["length/failed"] == 0
    assert result.updates == 3


def test_more_than_a_tenth_lost_stops_the_run_and_can_be_resumed(config_in, line, tmp_path, monkeypatch):
    config = config_in(tmp_path)
    with monkeypatch.context() as patched:
        break_worlds(patched, line, {2, 3})
        with pytest.raises(TrainError, match=r"update 2 lost 2 of 2 groups.*no such world.*resume"):
            train(config, line)
    assert [entry["update"] for entry in told(config, "update")] == [1]
    assert train(config, line).updates == 3


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"policy__temperature": 0.0}, "temperature 0"),
        ({"policy__top_p": 0.5}, "top_p"),
        ({"rollout__seeds": "0:3"}, "need 6"),
        ({"rollout__seeds": "999990:1000010"}, "overlap"),
        ({"training__credit__estimator": "gae"}, "unknown estimator"),
        ({"model__device": "warp"}, "model.device"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(config_in, line, tmp_path, changes, problem):
    config = config_in(tmp_path, **changes)
    with pytest.raises(ConfigError, match=problem):
        train(config, line)
    assert not config.training.run_dir.exists()


def test_an_outcome_that_contradicts_the_records_warns(config_in, line, tmp_path, caplog):
    class Generous(type(line.app)):
        def outcome(self, observation):
            return 100.0

    config = config_in(tmp_path, training__updates=1)
    train(config, TaskSpec(Generous(), line.options))
    assert "update 1: in 16 episodes the outcome is not the sum of their new events" in caplog.text
    assert told(config, "update")[0]["reward/misaligned"] == 16
    caplog.clear()
    other = config_in(tmp_path / "other", training__updates=1)
    train(other, line)
    assert caplog.text == ""
    assert told(other, "update")[0]["reward/misaligned"] == 0


def test_broken_records_stop_the_run(config_in, line, tmp_path):
    config = config_in(tmp_path)

    def forget_a_turn(line_written):
        if line_written["kind"] == "eval":
            with TraceStore.open(config.rollout.trace_db) as other:
                other._connection.execute(
                    "CREATE TRIGGER forget AFTER INSERT ON decision_rewards WHEN NEW.turn = 2 BEGIN "
                    "DELETE FROM decision_rewards WHERE turn = 2; END"
                )

    with (
        TraceStore.open(config.rollout.trace_db) as store,
        pytest.raises(TrainError, match="update 1 cannot be trained on: no decision record for turn 2"),
    ):
        run_training(config, line, store, progress=forget_a_turn)


def test_words_the_app_forgot_stop_the_run(config_in, line_of, tmp_path):
    with pytest.raises(TrainError, match="unknown word 'zebra'"):
        train(config_in(tmp_path), line_of(words="zebra"))


def test_the_start_checkpoint_holds_the_initial_weights(config_in, line, tmp_path):
    config = config_in(tmp_path)
    result = train(config, line)
    start = load_file(config.training.run_dir / "checkpoints" / "u000000" / "model.safetensors")
    end = load_file(result.checkpoint / "model.safetensors")
    assert start.keys() == end.keys()
    assert not all((start[name] == end[name]).all() for name in start)
