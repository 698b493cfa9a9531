"""Plots: SVG that holds what was drawn, the same bytes each time, and no fixed size."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

pytest.importorskip("matplotlib", reason="plots need the extra `train`")

from task_app.analyze.plots import Level, Series, bar_plot, line_plot

LINE = Series("score <b>", [1, 2, 3], [1.0, 2.0, 1.5], ([0.5, 1.5, 1.0], [1.5, 2.5, 2.0]))


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")]


def test_line_plot_names_its_series_axes_and_references():
    svg = line_plot([LINE], x_label="update", y_label="achievements", references={"random policy": Level(1.2)})
    assert {"score <b>", "random policy", "update", "achievements"} <= set(texts(svg))
    assert 'width="100%"' in svg


def test_bar_plot_names_every_group():
    svg = bar_plot(["a", "long name"], {"before": [1, 2], "after": [2, 3]}, x_label="", y_label="%",
                   reference=("random policy", [0.5, 0.5]))  # fmt: skip
    assert {"a", "long name", "before", "after", "random policy"} <= set(texts(svg))


def test_the_same_numbers_give_the_same_bytes():
    assert line_plot([LINE], x_label="x", y_label="y") == line_plot([LINE], x_label="x", y_label="y")


def test_a_reference_with_an_interval_is_a_line_in_a_band():
    plain = line_plot([LINE], x_label="x", y_label="y", references={"sft": Level(1.2)})
    banded = line_plot([LINE], x_label="x", y_label="y", references={"sft": Level(1.2, 1.0, 1.4)})
    assert banded.count("<path") == plain.count("<path") + 1
