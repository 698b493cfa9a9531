"""Rollouts on an app elsewhere that break, answer something else, or cannot be had at all."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

from task_app.collect import build_batch
from task_app.core.errors import ConfigError, ContextOverflow, PolicyError, TrainError
from task_app.core.types import Completion, DecisionRequest, Episode, StepRewardFlags
from task_app.core.wire import episode_bytes, episode_to_json
from task_app.http.ports import listen
from task_app.rollout import Limits, plan_groups, play
from task_app.train.hosted import HostedRollouts, make_rollouts
from task_app.train.plan import check_config
from task_app.wiring import check
from tests.policies.stub_endpoint import StubEndpoint
from tests.train.hosted_runs import KEY, address, served_app, small_run
from tests.train.test_hosted import train
from tests.train.unsteady import unsteady

FLAGS = StepRewardFlags(kind="absolute", indicator_lambda=0.5)
PLANS = plan_groups(range(2), 2, run_id="run", noise_seed=5, update=3)


@dataclass
class Caller:
    """Says `do` for ever. `faults` by (seed, member, turn): what the next tries of that decision, alone, raise."""

    app: Any
    faults: dict[tuple[int, int, int], list[Exception]] = field(default_factory=dict)
    batches: list[list[tuple[int, int, int]]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    name: str = "caller"
    version: str = "u2"
    batched: bool = True

    def decide(self, requests: Sequence[DecisionRequest]) -> list[Completion]:
        places = [(request.seed, request.member, request.turn) for request in requests]
        self.batches.append(places)
        for place, request in zip(places, requests, strict=True):
            if self.faults.get(place):
                error = self.faults[place].pop(0) if len(requests) == 1 else self.faults[place][0]
                raise replace_ids(error, request.episode_id)
        said = self.app.say(("do",))
        return [
            Completion(said, f"c-{request.episode_id[:8]}-{request.turn}", model=f"{self.name}-{self.version}")
            for request in requests
        ]

    def end_episode(self, episode_id: str) -> None:
        self.ended.append(episode_id)


def replace_ids(error: Exception, episode_id: str) -> Exception:
    return ContextOverflow(str(error), frozenset({episode_id})) if isinstance(error, ContextOverflow) else error


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with served_app(tmp_path_factory.mktemp("app")) as running:
        yield running


@dataclass
class Played:
    episodes: list[Episode]
    sunk: list[Episode]
    orphans: int


@pytest.fixture
def roll_out(tmp_path, spec_of) -> Callable[..., Played]:
    """Play PLANS on an app with a policy; the task is Crafter with default options."""

    def run(url: str, policy: Caller, *, plans=PLANS, limits=Limits(3), key=KEY, **changes: Any) -> Played:
        config = small_run(tmp_path, url, **changes)
        sunk: list[Episode] = []
        with HostedRollouts(config, spec_of(), key) as rollouts:
            episodes = rollouts.play(plans, spec_of(), policy, limits, FLAGS, sunk.append)
            return Played(episodes, sunk, rollouts.orphans)

    return run


@pytest.fixture
def caller(spec_of) -> Callable[..., Caller]:
    return lambda **changes: Caller(spec_of().app, **changes)


# -- what goes well -------------------------------------------------------------------------------


def test_episodes_and_batches_are_those_of_one_process(app, roll_out, caller, spec_of):
    here, there = caller(), caller()
    own = play(PLANS, spec_of(), here, Limits(3), FLAGS, lambda episode: None)
    played = roll_out(address(app), there)
    assert [episode_bytes(e) for e in played.episodes] == [episode_bytes(e) for e in own]
    assert there.batches == here.batches
    assert {e.update for e in played.episodes} == {3}
    assert [(e.group_id, e.member) for e in played.episodes] == [(p.group_id, p.member) for p in PLANS]
    assert {e.details["played_at"] for e in played.episodes} == {address(app)}
    assert sorted(there.ended) == sorted(e.episode_id for e in played.sunk)
    assert played.orphans == 0


def test_an_app_that_plays_fewer_at_once_is_not_waited_for(app, roll_out, caller):
    policy = caller()
    played = roll_out(address(app), policy, rollout__concurrency=2)
    assert all(e.status == "truncated" for e in played.episodes)
    assert max(map(len, policy.batches)) == 2


def test_a_budget_of_steps_and_a_limit_of_failures_travel(app, roll_out, caller):
    limits = Limits(9, max_env_steps=2)
    played = roll_out(address(app), caller(), limits=limits)
    assert {(e.cause, len(e.steps)) for e in played.episodes} == {("max_env_steps", 2)}


# -- what breaks ----------------------------------------------------------------------------------


def test_a_rollout_that_breaks_is_played_again_and_what_it_said_is_dropped(app, roll_out, caller):
    policy = caller(faults={(0, 1, 2): [PolicyError("no")] * 3})  # as often as the app asks for one decision
    played = roll_out(address(app), policy, rollout__policy_wait_s=0.05)
    broken = {(e.task.seed, e.member): e for e in played.episodes}[0, 1]
    assert (broken.status, broken.details["tries"], len(broken.decisions)) == ("truncated", 2, 3)
    assert all(e.rewarded for e in played.episodes)
    assert played.orphans >= 1


def test_a_rollout_that_keeps_breaking_has_no_reward_and_its_group_is_dropped(app, roll_out, caller):
    policy = caller(faults={(0, 1, 1): [PolicyError("no")] * 99})
    played = roll_out(address(app), policy, rollout__policy_wait_s=0.05, limits=Limits(3, infra_tries=2))
    statuses = {(e.task.seed, e.member): (e.status, e.outcome) for e in played.episodes}
    assert statuses[0, 1] == ("infra_error", None)
    assert "HTTP 503" in {(e.task.seed, e.member): e.cause for e in played.episodes}[0, 1]
    batch = build_batch(played.episodes, FLAGS, 2)
    assert list(batch.dropped) == [PLANS[0].group_id]
    assert [group.group_id for group in batch.groups] == [PLANS[2].group_id]


LOSSES = {
    "reset": StubEndpoint.reset,
    "stopping": StubEndpoint.raw(b'{"error": {"code": "stopping", "message": "the server is stopping"}}', 503),
    "proxy": StubEndpoint.raw(b"<html>bad gateway</html>", 502),
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_an_answer_that_is_lost_is_a_broken_try_and_not_the_end_of_the_run(app, roll_out, caller, spec_of, lose):
    own = play(PLANS, spec_of(), caller(), Limits(3), FLAGS, lambda episode: None)
    with unsteady(address(app), lose, *((plan.seed, plan.member) for plan in PLANS), times=1) as between:
        played = roll_out(between, caller())
    assert [episode_bytes(e) for e in played.episodes] == [episode_bytes(e) for e in own]
    assert {e.details["tries"] for e in played.episodes} == {2}


def test_answers_that_are_always_lost_drop_their_group_and_no_other(app, roll_out, caller):
    with unsteady(address(app), StubEndpoint.reset, (0, 1), times=99) as between:
        played = roll_out(between, caller(), rollout__policy_wait_s=0.05)
    broken = {(e.task.seed, e.member): e for e in played.episodes}[0, 1]
    assert (broken.status, broken.outcome, broken.details["tries"]) == ("infra_error", None, 3)
    assert "the call failed" in broken.cause
    batch = build_batch(played.episodes, FLAGS, 2)
    assert (list(batch.dropped), [group.group_id for group in batch.groups]) == (
        [PLANS[0].group_id],
        [PLANS[2].group_id],
    )


def test_a_prompt_that_outgrows_the_context_truncates_its_episode_alone(app, roll_out, caller):
    policy = caller(faults={(1, 0, 2): [ContextOverflow("too long", frozenset())]})
    played = roll_out(address(app), policy)
    ends = {(e.task.seed, e.member): (e.status, e.cause, len(e.decisions)) for e in played.episodes}
    assert ends.pop((1, 0)) == ("truncated", "context", 1)
    assert set(ends.values()) == {("truncated", "max_decisions", 3)}


def test_what_ends_the_sampling_is_raised_as_it_is(app, roll_out, caller):
    policy = caller(faults={(1, 1, 2): [TrainError("the run ends")]})
    with pytest.raises(TrainError, match="the run ends"):
        roll_out(address(app), policy)


def test_an_app_that_goes_away_is_named(tmp_path, roll_out, caller):
    with served_app(tmp_path / "app") as doomed:

        class Killer(Caller):
            def decide(self, requests: Sequence[DecisionRequest]) -> list[Completion]:
                if len(self.batches) == 1:
                    os.kill(doomed.process.pid, signal.SIGKILL)
                return super().decide(requests)

        with pytest.raises(PolicyError, match=f"task app {address(doomed)}: .*nor does its /health answer"):
            roll_out(address(doomed), Killer(caller().app))


def test_nobody_there_and_a_wrong_key_are_said_before_anything_is_done(app, tmp_path, monkeypatch):
    monkeypatch.setenv("ENVIRONMENT_API_KEY", "another")
    with pytest.raises(PolicyError, match="HTTP 401: a valid key is needed"):
        train(small_run(tmp_path / "a", address(app)))
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(PolicyError, match=f"task app http://127.0.0.1:{port}: it cannot be reached"):
        train(small_run(tmp_path / "b", f"http://127.0.0.1:{port}"))
    assert not (tmp_path / "b/run/metrics.jsonl").exists()


def test_another_task_is_refused(app, tmp_path, line):
    with pytest.raises(ConfigError, match=r"serves \('crafter', .*this run trains on \('line'"):
        HostedRollouts(small_run(tmp_path, address(app)), line, KEY).__enter__()


def test_an_app_that_cannot_reach_the_policy_is_told_so(app, roll_out, caller):
    with listen("127.0.0.1", 0) as listener:
        nowhere = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(TrainError, match=r"nobody asked the policy; it must reach the address of rollout\.policy_url"):
        roll_out(address(app), caller(), rollout__policy_url=nowhere)


@pytest.mark.parametrize("field", ["flags", "prompt_hash", "max_decisions", "task", "member"])
def test_an_answer_of_something_else_ends_the_run(endpoint, tmp_path, spec_of, caller, player, field):
    spec, plan = spec_of(), PLANS[0]
    (episode,) = play([plan], spec, player(spec, "random"), Limits(3), FLAGS, lambda e: None)
    other = {"flags": StepRewardFlags(), "prompt_hash": "f" * 16, "max_decisions": 4, "task": spec.ref(9), "member": 1}
    wrong = replace(episode, **{field: other[field]})
    rollouts = HostedRollouts(small_run(tmp_path, endpoint.url), spec, "")
    endpoint.otherwise = endpoint.raw(json_of({"trace": {"episode": episode_to_json(wrong)}}))
    rollouts._check_app = lambda: None  # type: ignore[method-assign]
    with rollouts, pytest.raises(TrainError, match=f"answered with {field} "):
        rollouts.play([plan], spec, caller(), Limits(3), FLAGS, lambda e: None)


def test_decisions_that_were_not_made_here_are_no_reward(endpoint, tmp_path, spec_of, caller, player):
    spec, plan = spec_of(), PLANS[0]
    (episode,) = play([plan], spec, player(spec, "random"), Limits(3), FLAGS, lambda e: None)
    rollouts = HostedRollouts(small_run(tmp_path, endpoint.url), spec, "")
    endpoint.otherwise = endpoint.raw(json_of({"trace": {"episode": episode_to_json(episode)}}))
    rollouts._check_app = lambda: None  # type: ignore[method-assign]
    with rollouts, pytest.raises(TrainError, match="nobody asked the policy.*which was not made here"):
        rollouts.play([plan], spec, caller(), Limits(3), FLAGS, lambda e: None)


def json_of(value: Any) -> bytes:
    return httpx.Request("POST", "http://x", json=value).content


# -- what is refused at load ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"task_url": "host:8010"}, "rollout.task_url"),
        ({"task_url": "http://host?x=1"}, "rollout.task_url"),
        ({"task_url": "http://host", "rollout__policy_url": "ftp://x"}, "rollout.policy_url"),
        ({"task_url": "http://host", "rollout__policy_host": "0.0.0.0"}, "rollout.policy_url"),
        ({"task_url": "http://host", "sampler__kind": "vllm", "model__path": "m"}, "sampler.kind"),
    ],
)
def test_what_cannot_work_is_refused_at_load(tmp_path, changes, field):
    with pytest.raises(ConfigError) as caught:
        check_config(small_run(tmp_path, **changes))
    assert caught.value.field == field


def test_supervised_training_and_several_processes_are_refused(tmp_path, monkeypatch):
    from task_app.train import hosted
    from task_app.train.plan import check_lessons

    config = small_run(tmp_path, "http://host")
    with pytest.raises(ConfigError, match="cannot be used in supervised training"):
        check_lessons(config, check(config))
    monkeypatch.setattr(hosted, "current", lambda: type("Two", (), {"alone": False})())
    with pytest.raises(ConfigError, match="cannot be used with several processes"):
        make_rollouts(config, check(config), {})


def test_every_line_of_a_faulty_call_is_one_episode(app, roll_out, caller):
    policy = caller(faults={(0, 0, 1): [PolicyError("no")] * 3})
    played = roll_out(address(app), policy, rollout__policy_wait_s=0.05)
    assert Counter((e.group_id, e.member) for e in played.sunk) == Counter((p.group_id, p.member) for p in PLANS)
