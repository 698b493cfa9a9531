"""docs/jobs.md names every route, exit code and status that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from task_app.config import load_config
from task_app.jobs.app import create_jobs_app
from task_app.jobs.launch import Outcome
from task_app.jobs.rows import JobStatus

PAGE = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text(encoding="utf-8")


def test_every_route_is_there(tmp_path):
    app = create_jobs_app(load_config(None, {"jobs.folder": str(tmp_path / "jobs")}), environ={})
    app.state.service.store.close()
    named = PAGE.split("## Routes")[1]
    for path in app.openapi()["paths"]:
        *_, last = path.split("/")
        assert (
            path.replace("job_id", "id").replace("file_id", "id") in named
            or f"/{last.replace('job_id', 'id')}" in named
        )


def test_statuses_and_exit_codes():
    for status in get_args(JobStatus):
        assert f"`{status}`" in PAGE
    table = {int(code) for code in re.findall(r"^\| (\d) \|", PAGE, flags=re.MULTILINE)}
    assert table == {0, 1, 2, 3}
    assert {
        Outcome(status, {}).exit_code for status in get_args(Outcome.__annotations__["status"]) or ("failed",)
    } <= table
