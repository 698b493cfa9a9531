"""docs/deploy.md against the code: its variables and functions, its arithmetic and the defaults it reckons with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from task_app.config import Config
from task_app.deploy import deployment

DOC = (Path(__file__).parents[2] / "docs/deploy.md").read_text(encoding="utf-8")
COSTS = re.findall(r"^\| ([^|]+) \| ([\d.]+ [×+ \d.]+) \| \$([\d.]+) \|$", DOC, flags=re.MULTILINE)


def rows(header: str) -> list[str]:
    table = re.search(rf"^\| {header} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", DOC, re.MULTILINE)
    assert table
    return [line.split("`")[1] for line in table[1].splitlines()]


def test_variables_and_functions_are_the_codes():
    assert rows("variable") == [deployment.CONFIG, deployment.OVERRIDES, deployment.SECRETS, deployment.WATCH]
    described = deployment.Deployment.of(Config()).describe()
    assert rows("function") == list(described["functions"])


def test_there_are_costs():
    assert len(COSTS) == 6


@pytest.mark.parametrize(("what", "arithmetic", "result"), COSTS, ids=[what for what, _, _ in COSTS])
def test_the_arithmetic_is_right(what, arithmetic, result):
    total = 0.0
    for term in arithmetic.split("+"):
        product = 1.0
        for factor in term.split("×"):
            product *= float(factor)
        total += product
    decimals = len(result.partition(".")[2])
    assert f"{total:.{decimals}f}" == result


def test_it_reckons_with_the_defaults():
    modal = Config().modal
    for key in ("cpu", "memory_mb", "scaledown_window_s"):
        assert f"`{key} = {getattr(modal, key)}`" in DOC
    assert "default `min_containers = 0`" in DOC
    assert modal.min_containers == 0
    prices = re.findall(r"\$(0\.[\d]+)[, ]", DOC.partition("| arithmetic")[0])
    assert all(price in DOC.partition("| arithmetic")[2] for price in prices)
    assert len(prices) == 4
