"""The nearest name, or nothing rather than a wild guess."""

from __future__ import annotations

from task_app.core.names import did_you_mean


def test_the_nearest_known_name_is_suggested():
    assert did_you_mean("expertt", ["random", "expert", "export"]) == "; did you mean 'expert'?"
    assert did_you_mean("exprt", iter(("random", "expert"))) == "; did you mean 'expert'?"


def test_nothing_is_suggested_when_nothing_is_near():
    assert did_you_mean("zzz", ["random", "expert"]) == ""
    assert did_you_mean("expert", []) == ""
