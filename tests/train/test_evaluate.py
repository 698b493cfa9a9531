"""Held-out evaluation: the figures by hand, and that two policies meet the same draws."""

import pytest

from task_app.train.evaluate import evaluate
from task_app.train.policy import EmbeddedPolicy


def run(network, config, update=None):
    episodes = []
    policy = EmbeddedPolicy(network, temperature=0.7)
    result = evaluate(policy, network.spec, config, episodes.append, run_id="run-eval", update=update)
    return result, episodes


def test_figures_agree_with_the_episodes(network, config_in, tmp_path):
    result, episodes = run(network, config_in(tmp_path), update=4)
    assert sorted(episode.task.seed for episode in episodes) == list(range(1000, 1006))
    assert {episode.update for episode in episodes} == {4}
    by_seed = sorted(episodes, key=lambda episode: episode.task.seed)
    assert result.outcomes == [episode.outcome for episode in by_seed]
    assert result.mean == pytest.approx(sum(result.outcomes) / 6)
    low, mean, high = result.low, result.mean, result.high
    assert low is not None
    assert mean is not None
    assert high is not None
    assert low < mean < high
    assert (result.n, result.failed, result.seeds) == (6, 0, "1000:1006")
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
        if seed == 1003:
            raise OSError("no such world")
        return reset(self, seed)

    monkeypatch.setattr(world, "reset", broken)
    result, episodes = run(network, config_in(tmp_path))
    assert (result.n, result.failed, len(episodes)) == (5, 1, 6)
    monkeypatch.setattr(world, "reset", lambda self, seed: 1 / 0)
    result, _ = run(network, config_in(tmp_path))
    assert (result.n, result.reward_by_turn) == (0, [])
    assert (result.mean, result.low, result.mean_decisions) == (None, None, None)
