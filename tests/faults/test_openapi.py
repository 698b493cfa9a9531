"""Requests made from the OpenAPI of the app, with the key and without: no 5xx, no status or body it does not name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.server.served import Served, running

KEY = "key-of-the-test"
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def app(tmp_path_factory) -> Iterator[Served]:
    db = tmp_path_factory.mktemp("openapi") / "t.db"
    limits = ("--server.max_decisions=3", "--server.max_time_s=5", "--rollout.max_decisions=2")
    with running(db, *limits, ENVIRONMENT_API_KEY=KEY) as served:
        yield served


def every_case(app: Served, examples: int, try_one: Callable[[schemathesis.Case], None]) -> int:
    """Try cases of every operation; how many operations there are."""
    schema = schemathesis.openapi.from_url(f"{app.url}/openapi.json", headers={"X-API-Key": KEY})
    operations = [found.ok() for found in schema.get_all_operations()]  # type: ignore[union-attr]
    for operation in operations:
        tried = given(case=operation.as_strategy())(lambda case: try_one(case))
        settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),  # type: ignore[arg-type]
        )(tried)()
    return len(operations)


def test_with_the_key(app):
    def try_one(case: schemathesis.Case) -> None:
        case.call_and_validate(headers={"X-API-Key": KEY}, checks=CHECKS, timeout=30)

    assert every_case(app, 25, try_one) >= 8


def test_without_the_key_all_but_two_are_closed(app):
    def try_one(case: schemathesis.Case) -> None:
        answer = case.call(headers={}, timeout=30)
        is_open = case.operation.path in ("/", "/health") and case.method in ("GET", "HEAD")
        assert (answer.status_code != 401) == is_open
        if is_open:
            case.validate_response(answer, checks=CHECKS)

    every_case(app, 3, try_one)
