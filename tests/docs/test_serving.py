"""docs/serving.md against the code: flags, routes, metrics."""

from __future__ import annotations

import re
from pathlib import Path

import typer
from prometheus_client.parser import text_string_to_metric_families

from task_app.cli.serving import serve
from task_app.config import load_config
from task_app.server import create_app
from task_app.server.metrics import Metrics

DOC = (Path(__file__).parents[2] / "docs/serving.md").read_text(encoding="utf-8")


def first_cells(header: str) -> list[str]:
    """The first cell of each row of the table with this header, without backticks."""
    table = re.search(rf"^\| {header} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", DOC, re.MULTILINE)
    assert table
    return [line.split("`")[1] for line in table[1].splitlines()]


def test_every_flag_is_explained():
    app = typer.Typer(add_completion=False)
    app.command()(serve)
    flags = {flag for parameter in typer.main.get_command(app).params for flag in parameter.opts}
    assert set(first_cells("flag")) == {flag for flag in flags if flag.startswith("--")} - {"--help"}


def test_every_route_is_explained(tmp_path):
    app = create_app(load_config(None, {"rollout.trace_db": str(tmp_path / "t.db")}), environ={})
    routes = {
        f"{method.upper()} {path}"
        for path, methods in app.openapi()["paths"].items()
        for method in methods
        if not path.startswith("/viewer")
    }
    assert set(first_cells("route")) == routes


def test_every_metric_is_explained():
    metrics = Metrics()
    metrics.began()
    metrics.ended("ok", 1, 1.0)
    metrics.refused("busy")
    metrics.request("/", "GET", 200, 0.1)
    families = text_string_to_metric_families(metrics.text().decode())
    names = {f"{one.name}_total" if one.type == "counter" else one.name for one in families}
    assert set(first_cells("name")) == {name for name in names if not name.endswith("_created")}
