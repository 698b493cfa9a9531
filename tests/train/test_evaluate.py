"""Held-out evaluation: the figures by hand, and that two policies meet the same draws."""

import pytest

from task_app.analyze.stats import mean_interval
from task_app.core.errors import ConfigError
from task_app.store import TraceStore
from task_app.train.evaluate import evaluate, evaluate_both
from task_app.train.grpo import run_training
from task_app.train.launch import SeedRow, seed_totals, train_seeds
from task_app.train.metrics import MetricsLog
from task_app.train.paired import paired, paired_interval
from task_app.train.policy import EmbeddedPolicy
from task_app.train.report import DIFFERENCE, ENV_STEPS, report_run
from task_app.wiring import make_step_limits


def run(network, config, update=None):
    episodes = []
    policy = EmbeddedPolicy(network, temperature=0.7)
    result = evaluate(policy, network.spec, config, episodes.append, run_id="run-eval", update=update)
    return result, episodes


def test_figures_agree_with_the_episodes(network, config_in, tmp_path):
    result, episodes = run(network, config_in(tmp_path), update=4)
    assert sorted(episode.task.seed for episode in episodes) == list(range(1_000_000, 1_000_006))
    assert {episode.update for episode in episodes} == {4}
    by_seed = sorted(episodes, key=lambda episode: episode.task.seed)
    assert result.outcomes == [episode.outcome for episode in by_seed]
    assert result.mean == pytest.approx(sum(result.outcomes) / 6)
    low, mean, high = result.low, result.mean, result.high
    assert low is not None
    assert mean is not None
    assert high is not None
    assert low < mean < high
    assert (result.n, result.failed, result.seeds) == (6, 0, "1000000:1000006")
    share = sum("reached_1" in episode.event_counts for episode in episodes) / 6
    assert result.event_shares["reached_1"] == pytest.approx(share)
    assert result.event_shares["reached_9"] == 0.0
    unique = sum(len(episode.event_counts) for episode in episodes) / 6
    assert sum(result.reward_by_turn) == pytest.approx(unique)
    assert result.to_json()["mean"] == result.mean


def test_the_same_weights_score_the_same_whatever_the_update_is_called(network, config_in, tmp_path):
    first, second = (run(network, config_in(tmp_path), update=update)[0] for update in (0, 20))
    assert first.outcomes == second.outcomes
    other, _ = run(network, config_in(tmp_path, eval__sampling_seed=1))
    assert other.outcomes != first.outcomes


def test_failed_episodes_are_counted_and_not_scored(network, config_in, tmp_path, monkeypatch):
    world = type(network.spec.app.make_env(network.spec.options))
    reset = world.reset

    def broken(self, seed):
        if seed == 1_000_003:
            raise OSError("no such world")
        return reset(self, seed)

    monkeypatch.setattr(world, "reset", broken)
    result, episodes = run(network, config_in(tmp_path))
    assert (result.n, result.failed, len(episodes)) == (5, 1, 6)
    monkeypatch.setattr(world, "reset", lambda self, seed: 1 / 0)
    result, _ = run(network, config_in(tmp_path))
    assert (result.n, result.reward_by_turn) == (0, [])
    assert (result.mean, result.low, result.mean_decisions) == (None, None, None)


def test_the_paired_interval_is_over_worlds_both_scored():
    before, after = {1: 1.0, 2: 5.0, 3: 2.0, 9: 7.0}, {1: 2.0, 2: 6.0, 3: 5.0, 8: 1.0}
    mean = paired_interval(before, after)
    differences = [1.0, 1.0, 3.0]
    assert mean == mean_interval(differences)
    assert mean.n == 3
    line = {"worlds": [1, 2, 3], "outcomes": [1.0, 5.0, 2.0]}
    found = paired(line, {"worlds": [1, 2, 3], "outcomes": [0.0, 5.0, 9.0]})
    assert (found["n"], found["wins"], found["losses"], found["ties"]) == (3, 1, 1, 1)
    unpaired = mean_interval([*after.values()]).mean or 0.0
    assert mean.mean != unpaired - (mean_interval([*before.values()]).mean or 0.0), "pairing must matter here"


def test_it_is_played_at_its_own_temperature(config_in, line, tmp_path):
    outcomes = []
    for temperature in (0.05, 1.0):
        for trained_at in (0.7, 1.0):
            config = config_in(
                tmp_path / f"{temperature}-{trained_at}", policy__temperature=trained_at, eval__temperature=temperature
            )
            with TraceStore.open(config.rollout.trace_db) as store:
                result = run_training(config, line, store)
                episodes = list(store.episodes(run_id=f"{result.run_id}-eval", update=0))
            tokens = [decision.completion.tokens for episode in episodes for decision in episode.decisions]
            assert {trace.temperature for trace in tokens if trace} == {temperature}
            outcomes.append(result.before["outcomes"])
    assert outcomes[0] == outcomes[1], "the temperature of training must not matter"
    assert outcomes[2] == outcomes[3] != outcomes[0]
    with (
        TraceStore.open(tmp_path / "t.db") as store,
        pytest.raises(ConfigError, match="eval.temperature = 0 cannot be used"),
    ):
        run_training(config_in(tmp_path / "cold", eval__temperature=0.0), line, store)


def test_a_budget_of_steps_removes_the_gain_of_longer_decisions(network, config_in, tmp_path):
    config = config_in(tmp_path, eval__env_steps=5)
    with TraceStore.open(config.rollout.trace_db) as store:
        policy = EmbeddedPolicy(network)
        first = evaluate_both(policy, network.spec, config, store, run_id="r", update=0)
        line = evaluate_both(policy, network.spec, config, store, run_id="r", update=1, first=first)
        episodes = list(store.episodes(run_id="r-steps", update=1))
        assert len(list(store.episodes(run_id="r", update=1))) == 6
    assert first["paired"] is first["env_steps"]["paired"] is None
    assert (line["paired"]["n"], line["paired"]["mean"], line["paired"]["ties"]) == (6, 0.0, 6)
    control = line["env_steps"]
    assert (control["budget"], control["n"], control["paired"]["ties"]) == (5, 6, 6)
    assert control["outcomes"] == [episode.outcome for episode in episodes]
    for episode in episodes:
        assert episode.max_decisions == 5
        assert len(episode.steps) == 5 or episode.terminated
        assert episode.terminated or episode.cause == "max_env_steps"
    assert control["mean_steps"] == sum(len(episode.steps) for episode in episodes) / 6
    assert not {"seeds", "event_shares", "reward_by_turn"} & control.keys()


def test_the_turn_limit_of_that_budget_can_be_set(config_in, tmp_path):
    assert make_step_limits(config_in(tmp_path)) is None
    limits = make_step_limits(config_in(tmp_path, eval__env_steps=12, eval__env_steps_max_decisions=6))
    assert limits is not None
    assert (limits.max_env_steps, limits.max_decisions) == (12, 6)


def test_means_over_training_seeds_come_last():
    rows = [(0, 1.0, 2.0, 1.0, 5.0, 10.0), (1, 1.0, 4.0, 3.0, 5.0, 10.0)]
    mean, low, high = seed_totals(rows)
    assert mean == ("mean", 1.0, 3.0, 2.0, 5.0, 10.0)
    interval = mean_interval([2.0, 4.0])
    assert (low[0], low[2], high[0], high[2]) == ("95 % low", interval.low, "95 % high", interval.high)


def test_the_interval_over_training_seeds_by_hand():
    """Three seeds. Means 2, 4, 9: mean 5, sample deviation √13, t(.975, 2 degrees) = 4.302653, so 5 ± 8.956686."""
    rows: list[SeedRow] = [(0, 1.0, 2.0, 1.0, 5.0, 10.0), (1, 1.0, 4.0, 3.0, 5.0, 10.0), (2, 1.0, 9.0, None, 5.0, 10.0)]
    mean, low, high = seed_totals(rows)
    assert (mean[2], low[2], high[2]) == pytest.approx((5.0, -3.956686, 13.956686), abs=1e-5)
    # A seed without a figure is left out of that column alone: 1 and 3, mean 2 ± 12.706205 · √2/√2.
    assert (mean[3], low[3], high[3]) == pytest.approx((2.0, -10.706205, 14.706205), abs=1e-5)
    assert (mean[1], low[1], high[1]) == (1.0, 1.0, 1.0)


def test_training_seeds_are_runs_of_their_own(config_in, tmp_path):
    """Worlds first: a seed's figures are its own evaluations' means, and the last rows are over these alone."""
    small = {"rollout__group_size": 2, "training__updates": 1, "eval__seeds": "1000000:1000003"}
    config = config_in(tmp_path, **small, model__max_positions=256)
    rows = train_seeds(config, range(2), note=lambda text: None)
    assert [row[0] for row in rows] == [0, 1, "mean", "95 % low", "95 % high"]
    for seed, row in enumerate(rows[:2]):
        lines = MetricsLog(config.training.run_dir / f"seed-{seed}" / "metrics.jsonl").lines()
        first, last = [line for line in lines if line["kind"] == "eval"]
        assert row[1:4] == (first["mean"], last["mean"], last["paired"]["mean"])
        assert first["mean"] == sum(first["outcomes"]) / 3
    expected = mean_interval([row[2] for row in rows[:2] if row[2] is not None])
    assert (rows[2][2], rows[3][2], rows[4][2]) == (expected.mean, expected.low, expected.high)


def test_the_report_tells_the_paired_difference(config_in, line, tmp_path):
    config = config_in(tmp_path, eval__env_steps=4)
    with TraceStore.open(config.rollout.trace_db) as store:
        result = run_training(config, line, store)
        report = report_run(config.training.run_dir, result.run_id, store, {})
    paired_line = result.after["paired"]
    assert result.difference.mean == paired_line["mean"]
    assert report.facts[DIFFERENCE].startswith(str(result.difference))
    assert f"won {paired_line['wins']}" in report.facts[DIFFERENCE]
    assert "after" in report.facts[f"{ENV_STEPS}4"]
    assert "after − before on the same worlds" in (config.training.run_dir / "report.html").read_text()
