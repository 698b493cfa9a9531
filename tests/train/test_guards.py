"""The guards: what each says, and of what it says nothing; figures against definitions worked by hand."""

from __future__ import annotations

import json
import math
import random
import statistics

import pytest

from task_app.collect import build_batch
from task_app.config.training import GuardsSection
from task_app.core.errors import ConfigError
from task_app.core.types import StepRewardFlags
from task_app.train.guards import Guards, slope, spread
from task_app.train.layers import LAYERS, alive_facts, layer_facts, reward_layers
from task_app.train.plan import config_json, differing_keys


def spread_line(value: float | None, **more) -> dict:
    return {"layer/return/spread": value, **more}


def run_guards(guards: Guards, trace, first: int = 1) -> list:
    """The verdicts of a trace of lines."""
    return [guards.examine(update, line) for update, line in enumerate(trace, start=first)]


# -- collapse ----------------------------------------------------------------------------------------


TRACE = [0.144, 0.056, 0.0, 0.0, 0.0, 0.0]
"""As a run that collapsed went."""

SHORT = GuardsSection(collapse_spread=0.01, collapse_warn_after=2, collapse_stop_after=4)


def test_a_collapsing_run_is_warned_of_and_then_stopped():
    verdicts = run_guards(Guards(SHORT), map(spread_line, TRACE))
    assert [verdict.facts["guard/collapsed_updates"] for verdict in verdicts] == [0, 0, 1, 2, 3, 4]
    levels = [verdict.findings[0].level if verdict.findings else None for verdict in verdicts]
    assert levels == [None, None, None, "warn", "warn", "stop"]
    assert verdicts[-1].stop is not None
    assert "in 4 updates in a row" in verdicts[-1].stop.text
    assert [bool(verdict.new) for verdict in verdicts] == [False, False, False, True, False, True]


def test_a_guard_on_means_would_not_see_it():
    """The mean return of a collapsed run may be as high as ever: a guard that reads it instead stays silent."""
    lines = [{"layer/return/mean": 3.0, "layer/return/spread": value} for value in TRACE]
    broken = [{"layer/return/spread": line["layer/return/mean"]} for line in lines]
    assert run_guards(Guards(SHORT), lines)[-1].stop is not None
    assert run_guards(Guards(SHORT), broken)[-1].stop is None


def test_one_update_with_spread_starts_the_count_again():
    verdicts = run_guards(Guards(SHORT), map(spread_line, [0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0]))
    assert [verdict.facts["guard/collapsed_updates"] for verdict in verdicts] == [1, 2, 3, 0, 1, 2, 3]
    assert all(verdict.stop is None for verdict in verdicts)


def test_an_update_without_a_group_is_no_collapse():
    verdicts = run_guards(Guards(SHORT), map(spread_line, [0.0, None, 0.0, None]))
    assert [verdict.facts["guard/collapsed_updates"] for verdict in verdicts] == [1, 1, 2, 2]


@pytest.mark.parametrize("cut", range(1, len(TRACE)))
def test_a_resumed_run_counts_on_from_the_log(cut):
    whole = run_guards(Guards(SHORT), map(spread_line, TRACE))
    log = [json.loads(json.dumps(spread_line(TRACE[i], update=i + 1) | whole[i].facts)) for i in range(cut)]
    rest = run_guards(Guards(SHORT, log), map(spread_line, TRACE[cut:]), first=cut + 1)
    assert [verdict.facts for verdict in rest] == [verdict.facts for verdict in whole[cut:]]
    forgetful = run_guards(Guards(SHORT), map(spread_line, TRACE[cut:]), first=cut + 1)
    if cut > 2:
        assert forgetful[-1].stop is None  # what a count kept in memory alone would say


def test_zero_never_warns_and_never_stops():
    silent = Guards(GuardsSection(collapse_warn_after=0, collapse_stop_after=0))
    assert not any(verdict.findings for verdict in run_guards(silent, [spread_line(0.0)] * 20))


def test_the_split_of_flat_groups_is_told():
    line = spread_line(0.0) | {"adv/zero_variance_high": 3.0, "adv/zero_variance_low": 1.0}
    found = run_guards(Guards(SHORT), [line] * 4)[-1].stop
    assert found is not None
    assert "3 all high, 1 all low" in found.text


# -- spread and slope ----------------------------------------------------------------------------------


def test_spread_is_the_mean_population_deviation_inside_groups():
    groups = [[0.0, 1.0, 2.0], [5.0, 5.0], [1.0, 4.0]]
    assert spread(groups) == pytest.approx(statistics.fmean(map(statistics.pstdev, groups)))
    assert spread([[0.0, 0.0], [9.0, 9.0]]) == 0  # groups differ, members do not
    assert spread([]) is None


def test_equal_members_have_no_spread_at_all():
    """Seven times .35 has a rounding residue of about 1e-17 where it is compared with its mean."""
    assert spread([[0.35] * 7, [0.1] * 3]) == 0.0


def test_slope_is_least_squares_per_update():
    draw = random.Random(0)
    points = [(update, 2.0 - 0.3 * update + draw.gauss(0, 1)) for update in (1.0, 2.0, 3.0, 5.0, 9.0)]
    found = slope(points)
    assert found is not None
    line = statistics.linear_regression(*zip(*points, strict=True))
    assert found.per_update == pytest.approx(line.slope)
    left = sum((y - line.intercept - line.slope * x) ** 2 for x, y in points)
    middle = statistics.fmean(x for x, _ in points)
    error = math.sqrt(left / 3 / sum((x - middle) ** 2 for x, _ in points))
    assert found.errors == pytest.approx(line.slope / error)


def test_slope_of_too_little_a_constant_and_a_straight_line():
    assert slope([(1, 0.0), (2, 1.0)]) is None
    still = slope([(update, 0.1 + 0.2) for update in range(10)])
    assert still is not None
    assert (still.per_update, still.errors) == (0, 0)
    straight = slope([(float(update), 2.0 * update) for update in range(4)])
    assert straight is not None
    assert straight.per_update == 2
    assert straight.errors > 1e6


# -- a goal that stands still --------------------------------------------------------------------------

WINDOW = GuardsSection(slope_window=8)


def layer_lines(total, outcome, unique) -> list[dict]:
    values = zip(total, outcome, unique, strict=True)
    return [{"layer/return/mean": t, "layer/outcome/mean": o, "layer/unique_delta/mean": u} for t, o, u in values]


def noisy(rise: float, seed: int, count: int = 8) -> list[float]:
    draw = random.Random(seed)
    return [2 + rise * update + draw.gauss(0, 0.1) for update in range(count)]


def test_a_total_that_climbs_over_flat_goals_warns():
    flat = [2.0, 2.1] * 4
    verdicts = run_guards(Guards(WINDOW), layer_lines(noisy(0.3, 1), flat, flat))
    assert [bool(verdict.findings) for verdict in verdicts] == [False] * 7 + [True]
    assert verdicts[-1].findings[0].guard == "flat_goal"
    assert "outcome" in verdicts[-1].findings[0].text
    assert "unique_delta" in verdicts[-1].findings[0].text
    assert verdicts[-1].facts["layer/outcome/slope"] == pytest.approx(slope(list(enumerate(flat))).per_update)  # type: ignore[union-attr]


def test_goals_that_climb_with_the_total_do_not_warn():
    for seed in range(50):
        total = noisy(0.3, seed)
        lines = layer_lines(total, [value + 0.05 for value in total], noisy(0.3, seed + 1000))
        assert not run_guards(Guards(WINDOW), lines)[-1].findings
        still = layer_lines(*(noisy(0.0, seed + offset) for offset in (0, 100, 200)))
        assert not run_guards(Guards(WINDOW), still)[-1].findings


def test_only_the_goal_that_is_flat_is_named():
    lines = layer_lines(noisy(0.3, 1), noisy(0.3, 2), [2.0] * 8)
    (finding,) = run_guards(Guards(WINDOW), lines)[-1].findings
    assert "(unique_delta +0)" in finding.text


# -- entropy and behaviour -----------------------------------------------------------------------------


def test_entropy_at_entry_is_kept_and_a_low_one_warns():
    verdicts = run_guards(Guards(GuardsSection()), [{"policy/entropy": value} for value in (0.096, 0.3, 0.05)])
    assert [verdict.facts["policy/entry_entropy"] for verdict in verdicts] == [0.096] * 3
    assert "before the first update" in verdicts[0].findings[0].text
    assert [len(verdict.findings) for verdict in verdicts] == [1, 0, 1]
    healthy = run_guards(Guards(GuardsSection()), [{"policy/entropy": value} for value in (0.32, 0.2)])
    assert not any(verdict.findings for verdict in healthy)


def test_an_update_without_tokens_has_no_entropy_to_judge():
    verdicts = run_guards(Guards(GuardsSection()), [{"policy/entropy": value} for value in (None, 0.3)])
    assert [verdict.facts["policy/entry_entropy"] for verdict in verdicts] == [None, 0.3]
    assert not any(verdict.findings for verdict in verdicts)


@pytest.mark.parametrize(
    ("key", "bad", "good", "guard"),
    [
        ("behaviour/window_entropy", 0.05, 0.15, "window_entropy"),
        ("behaviour/cycling_episodes", 0.5, 0.4, "cycles"),
    ],
)
def test_behaviour_findings(key, bad, good, guard):
    verdicts = run_guards(Guards(GuardsSection()), [{key: good}, {key: bad}, {key: bad}, {key: None}])
    assert [[finding.guard for finding in verdict.findings] for verdict in verdicts] == [[], [guard], [guard], []]
    assert [len(verdict.new) for verdict in verdicts] == [0, 1, 0, 0]  # told once


# -- layers of a batch ---------------------------------------------------------------------------------


@pytest.mark.parametrize("horizon", ["configured", "episode"])
def test_the_layers_of_r_add_up_to_the_return(episodes, horizon):
    flags = StepRewardFlags(indicator_lambda=0.25, beta=0.125, horizon=horizon)
    layers = reward_layers(build_batch(episodes, flags, 4))
    assert tuple(layers) == LAYERS
    flat = {name: [value for group in groups for value in group] for name, groups in layers.items()}
    assert any(flat["beta"])
    for index, episode in enumerate(episodes):
        assert flat["return"][index] == pytest.approx(
            sum(flat[name][index] for name in ("unique_delta", "lambda", "beta"))
        )
        assert flat["outcome"][index] == episode.outcome
        assert flat["env_return"][index] == episode.environment_return


def test_repeats_are_a_layer_of_their_own(episodes):
    flags = StepRewardFlags(kind="absolute")
    layers = reward_layers(build_batch(episodes, flags, 4))
    assert layers["return"] == layers["ach_delta"]
    assert layers["lambda"] == layers["beta"] == [[0.0] * 4, [0.0] * 4]
    facts = layer_facts(layers)
    assert facts["layer/ach_delta/mean"] == statistics.fmean(v for group in layers["ach_delta"] for v in group)
    assert facts["layer/ach_delta/spread"] == spread(layers["ach_delta"])


def test_alive_and_lone_members_by_turn(episodes):
    facts = alive_facts(build_batch(episodes, StepRewardFlags(), 4))
    turns = max(len(episode.decisions) for episode in episodes)
    for turn in range(turns):
        having = [episode.group_id for episode in episodes if len(episode.decisions) > turn]
        assert facts["alive/by_turn"][turn] == len(having)
        assert facts["alive/singletons_by_turn"][turn] == sum(having.count(group) == 1 for group in set(having))
    assert len(facts["alive/by_turn"]) == turns


def test_no_groups_give_no_numbers():
    batch = build_batch([], StepRewardFlags(), 4)
    assert set(layer_facts(reward_layers(batch)).values()) == {None}
    assert alive_facts(batch) == {"alive/by_turn": [], "alive/singletons_by_turn": []}


def test_a_run_may_be_resumed_with_other_limits_and_trackers(config_in, tmp_path):
    one, other = (
        config_in(tmp_path, training__guards__collapse_stop_after=stop, tracking__project=name, training__note=name)
        for stop, name in ((4, "a"), (5, "b"))
    )
    assert differing_keys(config_json(one), config_json(other)) == []


def test_limits_that_contradict_each_other_are_refused(config_in, tmp_path):
    with pytest.raises(ConfigError, match=r"collapse_warn_after \(5\) must not be above collapse_stop_after \(4\)"):
        config_in(tmp_path, training__guards__collapse_warn_after=5, training__guards__collapse_stop_after=4)
