"""`[jobs]`: what is an origin."""

from __future__ import annotations

import pytest

from task_app.config import load_config
from task_app.core.errors import ConfigError


def test_origins():
    given = ["https://app.example", "http://10.0.0.5:8010", "http://[::1]:80"]
    assert load_config(None, {"jobs.task_app_origins": given}).jobs.task_app_origins == given
    assert load_config().jobs.task_app_origins == []


@pytest.mark.parametrize(
    "text",
    [
        "", "app.example", "app.example:8010", "ftp://app.example", "http://", "https://app.example/",
        "https://app.example/api", "https://app.example?x", "https://app.example#x", "https://u:p@app.example",
        "https://app.example:port", "https://app.example:99999", "http://[::1", "*",
    ],
)  # fmt: skip
def test_what_is_no_origin(text):
    with pytest.raises(ConfigError, match="without a path") as caught:
        load_config(None, {"jobs.task_app_origins": ["https://app.example", text]})
    assert caught.value.field == "jobs.task_app_origins"
