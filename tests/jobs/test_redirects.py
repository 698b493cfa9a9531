"""Answers of a training service that are to be fetched elsewhere on it, as Modal sends them for long requests."""

from __future__ import annotations

import time

import pytest

from task_app.core.errors import PolicyError
from task_app.jobs.client import JobsClient
from tests.policies.stub_endpoint import StubEndpoint

JOB = b'{"id": "rl-1", "status": "queued"}'


def test_a_redirect_is_followed_by_get_on_the_same_server(endpoint):
    endpoint.plan(endpoint.raw(b"", 303, location="/api/rl/jobs?call=1"), endpoint.raw(JOB, 201))
    with JobsClient(endpoint.url, api_key="jk") as client:
        assert client.create("rl", {}, "key")["id"] == "rl-1"
    assert [(one.method, one.path) for one in endpoint.received] == [
        ("POST", "/api/rl/jobs"), ("GET", "/api/rl/jobs?call=1"),
    ]  # fmt: skip
    assert {one.headers["x-api-key"] for one in endpoint.received} == {"jk"}


def test_a_redirect_to_another_origin_is_not_followed(endpoint):
    with StubEndpoint() as other:
        endpoint.otherwise = endpoint.raw(b"", 303, location=f"{other.url}/api/rl/jobs/rl-1")
        with JobsClient(endpoint.url, api_key="jk") as client, pytest.raises(PolicyError, match="another origin"):
            client.job("rl", "rl-1")
        assert (len(endpoint.received), other.received) == (1, [])


def test_redirects_without_end_end_at_the_deadline(endpoint):
    endpoint.otherwise = endpoint.raw(b"", 303, location="/api/again")
    begun = time.monotonic()
    with JobsClient(endpoint.url, timeout_s=0.5) as client, pytest.raises(PolicyError, match="cannot be reached"):
        client.job("rl", "rl-1", once_s=5.0)
    assert time.monotonic() - begun < 2
    assert len(endpoint.received) <= 6
