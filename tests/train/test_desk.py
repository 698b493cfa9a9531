"""The desk and its address: who waits for whom, what is answered twice, and what is not answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import httpx
import pytest

from task_app.core.errors import PolicyError
from task_app.core.types import AssistantMessage, Completion, Decision, DecisionRequest, ToolCall
from task_app.rollout import plan_groups
from task_app.train.desk import Desk, NotAsked
from task_app.train.policy_endpoint import PolicyEndpoint

PLANS = plan_groups(range(3), 1, run_id="run", noise_seed=1)
MESSAGES = ({"role": "user", "content": "state"},)


class Echo:
    """Says each decision's noise key."""

    name, version, batched = "echo", "u1", True

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.ended: list[str] = []

    def decide(self, requests: Sequence[DecisionRequest]) -> list[Completion]:
        self.batches.append([request.noise_key for request in requests])
        return [
            Completion(
                AssistantMessage(None, (ToolCall("say", request.noise_key),), "tool_calls"),
                f"{request.episode_id}-{request.noise_key}",
                model="echo-u1",
                prompt_tokens=3,
                completion_tokens=2,
            )
            for request in requests
        ]

    def end_episode(self, episode_id: str) -> None:
        self.ended.append(episode_id)


@pytest.fixture
def policy() -> Echo:
    return Echo()


def key(index: int, turn: int = 1) -> str:
    return f"{PLANS[index].noise_key}/{turn}"


def ask(desk: Desk, index: int, turn: int = 1, episode: str = "", model: str = "echo-u1"):
    return desk.ask(model, episode or f"e{index}", key(index, turn), MESSAGES, ())


def decision(completion: Completion, turn: int = 1) -> Decision:
    return Decision(turn, MESSAGES, completion, None, (), None)


def test_decisions_wait_for_all_and_are_sampled_in_the_order_of_the_plans(policy):
    with Desk(policy, PLANS, 3, wait_s=30) as desk:
        answers = [ask(desk, index) for index in (2, 0)]
        time.sleep(0.05)
        assert policy.batches == []
        answers.append(ask(desk, 1))
        assert [answer.result(5).message.tool_calls[0].arguments for answer in answers] == [key(2), key(0), key(1)]
    assert policy.batches == [[key(0), key(1), key(2)]]


def test_a_rollout_that_is_over_is_not_waited_for(policy):
    with Desk(policy, PLANS, 3, wait_s=30) as desk:
        desk.ended("e2")
        answers = [ask(desk, index) for index in (0, 1)]
        assert all(answer.result(5) for answer in answers)
    assert policy.ended == ["e2"]


def test_who_has_waited_long_enough_is_answered(policy):
    with Desk(policy, PLANS, 3, wait_s=0.2) as desk:
        start = time.monotonic()
        ask(desk, 0).result(5)
        assert 0.2 <= time.monotonic() - start < 2


def test_a_decision_asked_twice_is_sampled_once(policy):
    with Desk(policy, PLANS, 1, wait_s=30) as desk:
        first = ask(desk, 0).result(5)
        assert ask(desk, 0).result(5) is first
        assert ask(desk, 0, episode="another").result(5) is not first
    assert policy.batches == [[key(0)], [key(0)]]


def test_completions_are_joined_by_their_id_and_those_without_an_episode_are_counted(policy):
    with Desk(policy, PLANS, 1, wait_s=30) as desk:
        made = ask(desk, 0).result(5)
        ask(desk, 1).result(5)
        told = Completion(made.message, made.completion_id)
        assert desk._join(decision(told)).completion is made
        assert desk.orphans == 1
        with pytest.raises(PolicyError, match="which was not made here"):
            desk._join(decision(told))


@pytest.mark.parametrize("what", ["prompt", "answer"])
def test_a_decision_stored_otherwise_than_it_was_sampled_is_refused(policy, what):
    with Desk(policy, PLANS, 1, wait_s=30) as desk:
        made = ask(desk, 0).result(5)
        message = made.message if what == "prompt" else AssistantMessage("something else")
        stored = decision(Completion(message, made.completion_id))
        if what == "prompt":
            stored = Decision(1, ({"role": "user", "content": "other"},), stored.completion, None, (), None)
        with pytest.raises(PolicyError, match=f"stored with another {what} than was sampled"):
            desk._join(stored)


def test_another_version_and_a_rollout_nobody_plays_are_not_asked(policy):
    with Desk(policy, PLANS, 1, wait_s=30) as desk:
        with pytest.raises(NotAsked, match="the policy being played is echo-u1"):
            ask(desk, 0, model="echo-u0")
        for wrong in ("", "9/-/0/0/1", f"{PLANS[0].noise_key}/x"):
            with pytest.raises(NotAsked, match="no rollout with this noise key"):
                desk.ask("echo-u1", "e", wrong, MESSAGES, ())


def test_the_end_answers_what_waits(policy):
    with Desk(policy, PLANS, 3, wait_s=30) as desk:
        waiting = ask(desk, 0)
    with pytest.raises(NotAsked, match="the rollouts are over"):
        waiting.result(1)
    with pytest.raises(NotAsked, match="the rollouts are over"):
        ask(desk, 0)


# -- its address ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address() -> Iterator[PolicyEndpoint]:
    with PolicyEndpoint("127.0.0.1", 0) as running:
        yield running


def post(base: str, noise_key: str = key(0), model: str = "echo-u1", **changes: object) -> httpx.Response:
    headers = {"X-Task-App-Episode": "e", "X-Task-App-Noise-Key": noise_key}
    body = {"model": model, "messages": list(MESSAGES), **changes}
    return httpx.post(f"{base}/chat/completions", json=body, headers=headers, timeout=10, trust_env=False)


def test_it_answers_in_the_form_every_client_reads(address, policy):
    with Desk(policy, PLANS, 1, wait_s=30) as desk:
        answer = post(address.serve(desk)).json()
    assert answer["id"] == f"e-{key(0)}"
    assert answer["model"] == "echo-u1"
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "say", "arguments": key(0)}


def test_only_whoever_was_told_the_address_is_answered_and_only_while_it_is_played(address, policy):
    with Desk(policy, PLANS, 1, wait_s=30) as desk:
        old = address.serve(desk)
        base = address.serve(desk)
        assert post(base.replace(base.split("/")[3], "guess")).status_code == 404
        assert post(old).status_code == 410
        assert post(base, model="echo-u0").json()["error"]["code"] == "model_not_found"
        assert post(base, noise_key="none").status_code == 404
        assert post(base, messages=3).status_code == 400
        assert post(base, messages=[3]).status_code == 400
    assert post(base).status_code == 404
    assert policy.batches == []


def test_a_policy_that_fails_is_503_and_waiting_ends_with_the_desk(address, policy):
    policy.decide = lambda requests: (_ for _ in ()).throw(PolicyError("broken"))
    with Desk(policy, PLANS, 1, wait_s=30) as desk:
        assert post(address.serve(desk)).status_code == 503
    with Desk(policy, PLANS, 3, wait_s=30) as desk:
        base, answers = address.serve(desk), []
        thread = threading.Thread(target=lambda: answers.append(post(base)))
        thread.start()
        while not desk.asked:
            time.sleep(0.01)
        desk.stop()
        thread.join()
    assert [answer.status_code for answer in answers] == [410]
