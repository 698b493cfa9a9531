"""A database in numbers: counted by hand on known contents, equal to the typed record on played ones."""

from __future__ import annotations

import itertools
import json
import sqlite3
from dataclasses import replace

import pytest

from task_app.analyze import columns as columns_module
from task_app.analyze import summarise
from task_app.analyze.database import analyze_database
from task_app.analyze.players import EventRow, TurnRow
from task_app.collect import reward_vector
from task_app.config.models import PriceSection
from task_app.core.errors import ConfigError, StoreError
from task_app.core.types import StepRewardFlags
from task_app.store import TraceStore

MODES = [
    StepRewardFlags("off"),
    StepRewardFlags("env_sparse"),
    StepRewardFlags(),
    StepRewardFlags(kind="absolute", indicator_lambda=0.5, beta=0.25),
]


@pytest.fixture
def report(known):
    return analyze_database(known)


@pytest.fixture
def players(report):
    return {player.label: player for player in report.players}


class TestKnownContents:
    """Hand-counted from the table in tests/known_traces.py."""

    def test_what_there_is(self, report):
        assert report.runs == ("base", "day", "night")
        assert (report.episodes, report.decisions, report.steps) == (8, 19, 36)
        labels = [player.label for player in report.players]
        assert labels == ["chat:gpt-4o-mini", "chat:qwen/qwen3-32b", "random"]

    @pytest.mark.parametrize(
        ("label", "counts"),
        [  # episodes, rewarded, decisions, steps, calls, without tokens, tokens in, out, parse failures, records
            ("chat:gpt-4o-mini", (4, 3, 10, 20, 10, 0, 1000, 100, 0, 10)),
            ("chat:qwen/qwen3-32b", (2, 2, 5, 8, 5, 0, 500, 50, 1, 5)),
            ("random", (2, 2, 4, 8, 4, 4, None, None, 0, 2)),
        ],
    )
    def test_counts(self, players, label, counts):
        p = players[label]
        assert counts == (
            p.episodes, p.rewarded, p.decisions, p.steps, p.calls, p.calls_without_tokens, p.prompt_tokens,
            p.completion_tokens, p.parse_failures, p.records,
        )  # fmt: skip
        assert p.versions == 1

    def test_endings(self, players):
        night, day = players["chat:gpt-4o-mini"], players["chat:qwen/qwen3-32b"]
        assert night.statuses == {"infra_error": 1, "ok": 1, "truncated": 2}
        assert night.infra_causes == {"endpoint gone": 1}
        assert (day.statuses, day.infra_causes) == ({"truncated": 2}, {})
        assert (night.parse_failure_share, day.parse_failure_share) == (0.0, 0.2)

    def test_scores(self, players):
        night, random = players["chat:gpt-4o-mini"], players["random"]
        assert (night.outcome.n, night.outcome.mean, night.outcome.median) == (3, 2.0, 2.0)  # of 2, 1, 3
        # deviation 1, standard error .57735, t(.975, 2) = 4.30265 → ± 2.48414
        assert night.outcome.low == pytest.approx(2 - 2.48414, abs=1e-4)
        assert night.outcome.high == pytest.approx(2 + 2.48414, abs=1e-4)
        assert (night.episode_return.mean, night.episode_return.median) == (2.0, 2.0)
        assert night.environment_return.mean == pytest.approx((2 + 1 + 2.9) / 3)
        assert night.environment_return.median == 2.0
        assert (random.outcome.n, random.outcome.mean, random.outcome.median) == (2, 0.5, 0.5)  # of 0, 1
        assert (night.ach_delta_sum, night.unique_delta_sum) == (7, 6)  # night-2b has no reward and is not in them
        assert (random.ach_delta_sum, random.unique_delta_sum) == (1, 1)

    def test_latency(self, players):
        latency = players["chat:gpt-4o-mini"].latency_s
        assert (latency.mean, latency.median, latency.p95, latency.total) == (0.5, 0.5, 0.5, 5.0)
        assert players["chat:qwen/qwen3-32b"].latency_s.total == 1.25

    def test_achievements(self, players):
        third = 1 / 3
        assert players["chat:gpt-4o-mini"].events == (
            EventRow("collect_drink", 1, third, 1, 2.0, 2.0, 2),
            EventRow("collect_sapling", 1, third, 1, 1.0, 1.0, 1),
            EventRow("collect_wood", 1, third, 2, 1.0, 1.0, 1),  # twice in night-1a; night-2b carries no reward
            EventRow("place_plant", 1, third, 1, 2.0, 2.0, 2),
            EventRow("place_table", 1, third, 1, 3.0, 3.0, 3),
            EventRow("wake_up", 1, third, 1, 3.0, 3.0, 3),
        )
        assert players["chat:qwen/qwen3-32b"].events == (
            EventRow("collect_drink", 1, 0.5, 2, 1.0, 1.0, 1),
            EventRow("collect_wood", 1, 0.5, 1, 2.0, 2.0, 2),
            EventRow("eat_cow", 1, 0.5, 1, 2.0, 2.0, 2),
        )
        assert players["random"].events == (EventRow("collect_wood", 1, 0.5, 1, 2.0, 2.0, 2),)

    def test_turns(self, players):
        assert players["chat:gpt-4o-mini"].turns == (
            TurnRow(1, 3, 3, 2, 2, 2 / 3, 2 / 3),
            TurnRow(2, 3, 3, 2, 2, 2 / 3, 2 / 3),
            TurnRow(3, 2, 2, 3, 2, 1.5, 1.0),  # night-1b had ended: two episodes were still alive
            TurnRow(4, 1, 1, 0, 0, 0.0, 0.0),
        )
        assert players["chat:qwen/qwen3-32b"].turns == (
            TurnRow(1, 2, 2, 1, 1, 0.5, 0.5),
            TurnRow(2, 2, 2, 2, 2, 1.0, 1.0),
            TurnRow(3, 1, 1, 1, 0, 1.0, 0.0),  # a repeat
        )
        assert players["random"].turns == (TurnRow(1, 2, 1, 0, 0, 0.0, 0.0), TurnRow(2, 2, 1, 1, 1, 0.5, 0.5))

    def test_warnings_and_notes(self, report):
        (group,), (recomputed,) = report.warnings, report.notes
        assert (group.kind, group.count, group.examples) == ("incomplete_groups", 1, ("night/update 0/s2",))
        assert (recomputed.kind, recomputed.count, recomputed.examples) == ("recomputed", 1, ("base-2",))

    def test_costs(self, known):
        prices = {"gpt-4o-mini": PriceSection(input=0.5, output=2.0), "qwen/qwen3-32b": PriceSection(gpu_hour=7.2)}
        night, day, random = analyze_database(known, prices=prices).players
        assert night.cost is not None
        assert day.cost is not None
        assert night.cost.total == pytest.approx(1000 * 0.5e-6 + 100 * 2e-6)
        assert night.cost.per_episode == pytest.approx(0.0007 / 4)
        assert night.cost.per_achievement == pytest.approx(0.0007 / 6)
        assert day.cost.total == pytest.approx(1.25 / 3600 * 7.2)
        assert random.cost is None

    def test_runs_can_be_chosen(self, known):
        only = analyze_database(known, run_ids=["day"])
        assert (only.runs, only.episodes, [player.label for player in only.players]) == (
            ("day",),
            2,
            ["chat:qwen/qwen3-32b"],
        )
        both = analyze_database(known, run_ids=["night", "base"])
        assert [player.episodes for player in both.players] == [4, 2]
        assert both.players[0].events[2] == EventRow("collect_wood", 1, 1 / 3, 2, 1.0, 1.0, 1)

    def test_it_is_strict_json(self, report):
        told = json.loads(json.dumps(report.to_json(), allow_nan=False))
        assert told["players"][0]["turns"][2]["unique_delta"] == 2
        assert told["warnings"][0]["examples"] == ["night/update 0/s2"]

    def test_analysis_prints_nothing(self, known, capfd):
        analyze_database(known)
        assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("flags", MODES, ids=lambda flags: f"{flags.mode}-{flags.kind}")
def test_numbers_are_those_of_the_typed_record(write, play_scripted, flags):
    played = [
        replace(episode, policy=policy)
        for policy in ("random", "expert")
        for episode in play_scripted(range(3), 2, policy=policy, max_decisions=12, flags=flags)
    ]
    lost = replace(played[1], status="infra_error", cause="gone", outcome=None, truncated=False, terminated=False)
    episodes = [played[0], lost, *played[2:]]
    report = analyze_database(write(episodes))
    for player in report.players:
        mine = [episode for episode in episodes if episode.policy == player.policy]
        summary = summarise(mine)
        rewarded = [episode for episode in mine if episode.rewarded]
        assert (player.episodes, player.rewarded) == (summary.episodes, summary.rewarded)
        assert (player.decisions, player.parse_failures) == (summary.decisions, summary.parse_failures)
        assert player.statuses == summary.statuses
        assert _mean(player.outcome) == pytest.approx(_mean(summary.outcome))
        assert _mean(player.environment_return) == pytest.approx(_mean(summary.environment_return))
        assert (player.ach_delta_sum, player.unique_delta_sum) == (summary.ach_delta_sum, summary.unique_delta_sum)
        assert {row.name: row.share for row in player.events} == summary.event_shares
        count = summary.rewarded
        assert {r.turn: (r.ach_delta / count, r.unique_delta / count) for r in player.turns} == summary.by_turn
        returns = [reward_vector(episode, flags).total for episode in rewarded]
        assert player.episode_return.mean == pytest.approx(sum(returns) / count)
        for row in player.events:
            assert row.times == sum(episode.event_counts[row.name] for episode in rewarded)
            first = [_first_turn(episode, row.name) for episode in rewarded if row.name in episode.event_counts]
            assert row.first_turn_mean == pytest.approx(sum(first) / len(first))
            assert row.first_turn_earliest == min(first) >= 1


def _mean(mean):
    return (mean.n, mean.mean, mean.low, mean.high)


def _first_turn(episode, name):
    return next(decision.turn for decision in episode.decisions if name in decision.events)


@pytest.mark.parametrize("mode", ["off", "env_sparse"])
def test_without_flags_there_are_no_decision_rewards_and_the_report_says_so(write, play_scripted, mode):
    store = write(play_scripted(policy="expert", flags=StepRewardFlags(mode)))
    report = analyze_database(store)
    (player,) = report.players
    assert player.records == 0
    assert {row.records for row in player.turns} == {0}
    assert sum(row.unique_delta for row in player.turns) == player.unique_delta_sum > 0
    assert [(note.kind, note.count) for note in report.notes] == [("recomputed", 4)]
    assert report.warnings == ()


def test_with_records_the_deltas_of_turns_are_the_records(write, one):
    """Not the events: a record that says otherwise is shown as it is (and verify finds it)."""
    episode = one("night-1b")
    first, second = episode.decisions
    assert second.rewards is not None
    odd = replace(second, rewards=replace(second.rewards, ach_delta=5, unique_delta=4))
    (player,) = analyze_database(write([replace(episode, decisions=(first, odd))])).players
    assert player.turns == (TurnRow(1, 1, 1, 0, 0, 0.0, 0.0), TurnRow(2, 1, 1, 5, 4, 5.0, 4.0))


def test_a_fraction_of_an_outcome_stays_one(write, one):
    (player,) = analyze_database(write([replace(one("day-1"), outcome=1.9)])).players
    assert player.outcome.mean == 1.9


def test_percentiles_of_latency(write, one):
    """.1 to 1.0: the median is .55, and 95 % of the way lies between .9 and 1.0, at .955."""
    episode = one("night-2a")
    seconds = itertools.count(1)

    def at(decision):
        return replace(decision, completion=replace(decision.completion, latency_s=next(seconds) / 10))

    episodes = [replace(episode, decisions=tuple(map(at, episode.decisions[:n]))) for n in (4, 4, 2)]
    (player,) = analyze_database(write(episodes)).players
    assert (player.calls, player.latency_s.median) == (10, pytest.approx(0.55))
    assert player.latency_s.p95 == pytest.approx(0.955)
    assert player.latency_s.mean == pytest.approx(0.55)


def test_players_are_told_by_policy_and_model_and_versions_are_counted(write, one):
    base = one("base-1")
    versions = [replace(base, policy_version=version) for version in ("1", "2", "2")]
    report = analyze_database(write([*versions, replace(base, policy="expert"), one("day-1")]))
    assert [(p.label, p.episodes, p.versions) for p in report.players] == [
        ("chat:qwen/qwen3-32b", 1, 1),
        ("expert", 1, 1),
        ("random", 3, 2),
    ]


def test_superseded_episodes_are_left_out(known):
    known.supersede("night", 0)
    report = analyze_database(known)
    assert report.runs == ("base", "day")
    assert (report.episodes, report.decisions) == (4, 9)
    assert {row.name for player in report.players for row in player.events} == {
        "collect_drink",
        "collect_wood",
        "eat_cow",
    }


def test_an_episode_without_decisions_is_counted(write, one):
    (player,) = analyze_database(write([replace(one("base-1"), decisions=())])).players
    assert (player.episodes, player.decisions, player.calls, player.turns, player.events) == (1, 0, 0, (), ())
    assert (player.latency_s.mean, player.parse_failure_share) == (None, None)
    assert player.outcome.mean == 0


def test_only_failed_episodes_leave_nothing_to_average(write, one):
    (player,) = analyze_database(write([one("night-2b")])).players
    assert (player.rewarded, player.outcome.n, player.outcome.mean, player.outcome.median) == (0, 0, None, None)
    assert (player.events, player.turns) == ((), ())


def test_an_empty_database_says_so(store):
    with pytest.raises(StoreError, match="holds no episodes"):
        analyze_database(store)
    with pytest.raises(StoreError, match="holds no episodes"):
        analyze_database(store, run_ids=["night"])


def test_an_unknown_run_is_named_with_the_nearest(known):
    with pytest.raises(ConfigError, match="no run 'nigth' .*did you mean 'night'") as caught:
        analyze_database(known, run_ids=["day", "nigth"])
    assert caught.value.field == "run_id"
    with pytest.raises(ConfigError, match=r"\(runs: base, day, night\)"):
        analyze_database(known, run_ids=["zzz"])
    with pytest.raises(ConfigError, match="no run was named"):
        analyze_database(known, run_ids=[])


def test_a_writer_cannot_make_the_numbers_disagree(known, path, monkeypatch):
    """Between two of the analysis's queries another process deletes a run and adds an episode."""
    before = analyze_database(known)
    real = columns_module._record_counts

    def while_another_writes(rows, keys):
        other = sqlite3.connect(path)
        other.execute("PRAGMA foreign_keys = ON")
        other.execute("DELETE FROM episodes WHERE run_id = 'night'")
        other.commit()
        other.close()
        return real(rows, keys)

    monkeypatch.setattr(columns_module, "_record_counts", while_another_writes)
    during = analyze_database(known)
    monkeypatch.undo()
    assert during == before
    assert analyze_database(known).episodes == 4


def test_a_snapshot_is_one_moment_and_ends(known, path, one):
    count = "SELECT count(*) FROM episodes"
    with TraceStore.open(path) as other, known.snapshot() as rows:
        assert next(rows(count)) == (8,)
        other.write_episode(replace(one("base-1"), episode_id="late"))
        assert next(rows(count)) == (8,)
    assert known.query(count)[0][0] == 9
    known.write_episode(replace(one("base-1"), episode_id="later"))  # no transaction is left open
    with pytest.raises(StoreError, match="cannot be read"), known.snapshot() as rows:
        rows("SELECT nothing FROM nowhere")
    known.write_episode(replace(one("base-1"), episode_id="latest"))
