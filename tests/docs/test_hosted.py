"""docs/hosted_training.md and docs/model_endpoints.md against the code: fields, headers, statuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from task_app.policies.chat import EPISODE_HEADER, NOISE_KEY_HEADER
from task_app.policies.endpoint import is_worth_another_try
from task_app.server.requests import RolloutRequest

DOCS = Path(__file__).parents[2] / "docs"
HOSTED, ENDPOINTS = ((DOCS / name).read_text(encoding="utf-8") for name in ("hosted_training.md", "model_endpoints.md"))


def test_every_field_of_a_request_is_one_the_app_takes():
    table = HOSTED.split("| field | meaning |")[1].split("\n\n")[0]
    fields = [name for row in table.splitlines()[2:] for name in re.findall(r"`([\w.]+)`", row.split("|")[1])]
    assert len(fields) == 9
    for field in fields:
        model: Any = RolloutRequest
        *sections, name = field.split(".")
        for section in sections:
            model = model.model_fields[section].annotation
        assert name in model.model_fields, field


def test_the_headers_are_named():
    assert {EPISODE_HEADER, NOISE_KEY_HEADER} <= set(re.findall(r"`(X-[\w-]+)`", HOSTED))


def test_the_statuses_that_are_tried_again_are_the_codes():
    row = next(line for line in ENDPOINTS.splitlines() if line.startswith("| HTTP 408"))
    told = {int(status) for status in re.findall(r"\b(4\d\d)\b", row)}
    assert told == {status for status in range(400, 500) if is_worth_another_try(status)}
    assert all(is_worth_another_try(status) for status in (500, 503, 599))
