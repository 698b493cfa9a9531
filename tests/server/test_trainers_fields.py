"""What a trainer elsewhere says in its requests: its noise, its grammar, its limits."""

from __future__ import annotations

import logging

import pytest

from task_app.apps import get_app

pytestmark = pytest.mark.anyio

KEY = "7/3/1/0"


async def test_the_noise_key_is_the_trainers_and_its_endpoint_is_told_it_with_each_decision(hosted, endpoint, chat):
    async with hosted() as app:
        answer = await app.played(**chat, noise_key=KEY)
        (stored,) = app.episodes()
    assert stored.details["noise_key"] == KEY
    told = [(r.headers["x-task-app-episode"], r.headers["x-task-app-noise-key"]) for r in endpoint.received]
    assert told == [(stored.episode_id, f"{KEY}/{turn}") for turn in (1, 2, 3)]
    assert answer["metrics"]["details"]["ignored"] == []


async def test_without_one_no_endpoint_is_told_anything(hosted, endpoint, chat):
    async with hosted() as app:
        await app.played(**chat)
    assert not any(name.startswith("x-task-app") for received in endpoint.received for name in received.headers)


async def test_the_tasks_own_grammar_is_taken_and_another_refused(hosted):
    crafter = get_app("crafter")
    grammar = crafter.grammar(crafter.options_model())
    assert grammar is not None
    async with hosted() as app:
        await app.played(grammar_hash=grammar.hash)
        answer = await app.rollout(grammar_hash="f" * 16)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "grammar_hash")
    assert "f" * 16 not in answer.text


async def test_the_trainers_limits_hold_instead_of_the_apps_own(hosted, endpoint, chat):
    endpoint.otherwise = endpoint.completion({"content": "hm"}, "stop")
    async with hosted(**{"rollout.max_parse_failures": 1}) as app:
        await app.played(**chat)
        await app.played(**chat, max_parse_failures=0)
        await app.played(max_env_steps=2)
        causes = [(episode.cause, len(episode.decisions)) for episode in app.episodes()]
    assert causes[:2] == [("max_parse_failures", 1), ("max_decisions", 3)]
    assert causes[2][0] == "max_env_steps"


@pytest.mark.parametrize("wrong", [{"noise_key": ""}, {"noise_key": "a\nb"}, {"max_env_steps": -1}])
async def test_what_is_no_such_value_is_422(hosted, wrong):
    async with hosted() as app:
        answer = await app.rollout(**wrong)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, next(iter(wrong)))


async def test_an_address_is_never_logged(hosted, endpoint, chat, caplog):
    chat = chat | {"policy__config__inference_url": f"{endpoint.url}/s3cret/v1?q=s3cret"}
    with caplog.at_level(logging.INFO):
        async with hosted() as app:
            await app.played(**chat)
    assert endpoint.received[0].path == "/s3cret/v1/chat/completions?q=s3cret"
    assert "s3cret" not in caplog.text
