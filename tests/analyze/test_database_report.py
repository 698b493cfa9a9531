"""The tables people read, and the page: whole, self-contained, escaped, and never in place of something else."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from task_app.analyze.database import analyze_database
from task_app.analyze.database_tables import Bar, caution_lines, heading, report_tables
from task_app.config.models import PriceSection
from task_app.core.errors import ConfigError, TaskAppError

needs_train = pytest.mark.skipif("not __import__('importlib.util').util.find_spec('matplotlib')", reason="extra train")
PRICES = {"gpt-4o-mini": PriceSection(input=0.5, output=2.0)}


@pytest.fixture
def report(known):
    return analyze_database(known, prices=PRICES, compare=("gpt-4o-mini", "qwen/qwen3-32b"))


def tables(report):
    return {table.title: table for table in report_tables(report)}


class TestTables:
    def test_every_table_is_there_in_order(self, report):
        assert list(tables(report)) == [
            "players",
            "outcomes and returns",
            "how episodes ended",
            "achievements · chat:gpt-4o-mini",
            "achievements · chat:qwen/qwen3-32b",
            "achievements · random",
            "decision rewards by turn · chat:gpt-4o-mini · ΣAchΔ 7, ΣUniqueΔ 6",
            "decision rewards by turn · chat:qwen/qwen3-32b · ΣAchΔ 4, ΣUniqueΔ 3",
            "decision rewards by turn · random · ΣAchΔ 1, ΣUniqueΔ 1",
            "costs",
            "chat:gpt-4o-mini against chat:qwen/qwen3-32b",
            "worlds",
        ]

    def test_rows_have_a_cell_for_every_column(self, report):
        for table in report_tables(report):
            assert {len(row) for row in table.rows} == {len(table.columns)}, table.title

    def test_cells_by_hand(self, report):
        found = tables(report)
        assert found["players"].rows[0] == ("chat:gpt-4o-mini", 1, 4, 3, 10, 10, 1000, 100, 0.5, 0.5, 0.5)
        assert found["players"].rows[2][6:8] == (None, None)
        assert found["how episodes ended"].rows[0] == (
            "chat:gpt-4o-mini", 1, 2, 1, 0, 0, "0 %", "1 × endpoint gone",
        )  # fmt: skip
        assert found["outcomes and returns"].rows[0] == ("chat:gpt-4o-mini", "outcome", 3, 2.0, 2.0, "-0.48 to 4.48")
        assert found["achievements · random"].rows == [("collect_wood", Bar(0.5), "50 %", 1, 1, 2.0, 2.0, 2)]
        assert found["costs"].rows == [("chat:gpt-4o-mini", "0.0007", "0.0007", "0", "0.000175", "0.000117")]
        duel = found["chat:gpt-4o-mini against chat:qwen/qwen3-32b"]
        assert duel.rows[0][:3] == ("chat:gpt-4o-mini", 2, 2.25)
        assert duel.rows[2][:4] == ("difference", "0 ties", 0.75, "-2.43 to 3.93")
        assert found["worlds"].rows == [(1, 1.5, 2, 1.0, 1, 0.5), (2, 3.0, 1, 2.0, 1, 1.0)][::-1]

    def test_nothing_to_say_is_no_table(self, known):
        found = tables(analyze_database(known, run_ids=["day"]))
        assert "costs" not in found
        assert "worlds" not in found

    def test_players_without_a_shared_world_are_told_so(self, write, one):
        pair = [replace(one("base-1"), policy=policy, max_decisions=limit) for policy, limit in (("a", 4), ("b", 5))]
        found = tables(analyze_database(write(pair)))
        assert "share no world" in found["a against b"].note

    def test_averaged_versions_are_told(self, write, one):
        base = one("base-1")
        versions = [replace(base, policy_version=version) for version in ("1", "2")]
        found = tables(analyze_database(write([*versions, replace(base, policy="zero")])))
        assert (
            "2 versions of random are averaged; --compare random@VERSION takes one" in found["random against zero"].note
        )

    def test_long_tables_say_where_the_rest_is(self, write, one):
        base = one("base-1")
        long = replace(base, decisions=tuple(replace(base.decisions[0], turn=t, steps=()) for t in range(1, 51)))
        many = [
            replace(base, policy=policy, task=replace(base.task, seed=seed)) for policy in "ab" for seed in range(30)
        ]
        found = tables(analyze_database(write([long, *many]), compare=("a", "b")))
        turns = found["decision rewards by turn · random · ΣAchΔ 0, ΣUniqueΔ 0"]
        assert len(turns.rows) == 40
        assert turns.note.endswith("Turns 41 to 50 are in --json.")
        assert len(found["worlds"].rows) == 20
        assert found["worlds"].note.endswith("All 30 are in --json.")

    def test_headings_and_cautions_are_sentences_with_numbers(self, report):
        assert heading(report).endswith("t.db: 3 runs, 8 episodes, 19 decisions, 36 steps")
        assert caution_lines(report.warnings) == [
            "warning: groups with a member missing or without reward: 1 (night/update 0/s2)"
        ]

    @pytest.mark.parametrize(("share", "text"), [(0, ""), (0.5, "█" * 8), (1, "█" * 16), (0.33, "█████▎")])
    def test_bars(self, share, text):
        assert str(Bar(share)) == text


@needs_train
class TestPage:
    def test_it_holds_the_numbers_and_two_plots(self, report, tmp_path):
        from task_app.analyze.database_report import write_database_report

        page = tmp_path / "new folder" / "p.html"
        write_database_report(page, report)
        text = page.read_text(encoding="utf-8")
        assert text.count("<svg") == 2
        assert "groups with a member missing or without reward: 1 (night/update 0/s2)" in text
        assert '<span style="width: 33.3%">' in text
        assert "1,000</td>" in text
        assert [entry.name for entry in page.parent.iterdir()] == ["p.html"]

    def test_the_same_report_gives_the_same_bytes(self, report, tmp_path):
        from task_app.analyze.database_report import write_database_report

        pages = [tmp_path / name for name in ("a.html", "b.html")]
        for page in pages:
            write_database_report(page, report)
        assert pages[0].read_bytes() == pages[1].read_bytes()

    def test_every_name_is_escaped(self, write, one, tmp_path):
        """Names come from models, endpoints and requests; none may become markup or mathematics."""
        from task_app.analyze.database_report import write_database_report

        evil = "<script>alert(1)</script>"
        episode = one("day-1")
        said = replace(episode.decisions[1].completion, model=f"{evil}$x$")
        steps = tuple(
            replace(step, events=(evil, "$a_b$") if step.events else ()) for step in episode.decisions[1].steps
        )
        decision = replace(episode.decisions[1], completion=said, steps=steps, turn=1)
        bad = replace(episode, policy=f"_{evil}", run_id=evil, group_id=evil, decisions=(decision,))
        failed = replace(bad, status="infra_error", cause=evil, outcome=None, truncated=False)
        write_database_report(tmp_path / "p.html", analyze_database(write([bad, failed])))
        text = (tmp_path / "p.html").read_text(encoding="utf-8")
        assert "<script" not in text
        assert "&lt;script&gt;alert(1)" in text

    def test_a_database_in_which_nothing_was_achieved_has_a_page(self, write, one, tmp_path):
        from task_app.analyze.database_report import write_database_report

        for index, episodes in enumerate(([one("base-1")], [one("night-2b")])):
            page = tmp_path / f"{index}.html"
            write_database_report(page, analyze_database(write([replace(e, member=index) for e in episodes])))
            assert "<table>" in page.read_text(encoding="utf-8")

    def test_the_database_is_never_overwritten(self, known, path):
        from task_app.analyze.database_report import write_database_report

        with pytest.raises(ConfigError, match="is the database") as caught:
            write_database_report(path, analyze_database(known))
        assert caught.value.field == "html"

    def test_a_place_that_cannot_be_written_keeps_what_was_there(self, report, tmp_path):
        from task_app.analyze.database_report import write_database_report

        occupied = tmp_path / "folder.html"
        occupied.mkdir()
        with pytest.raises(ConfigError, match="cannot write"):
            write_database_report(occupied, report)
        assert sorted(entry.name for entry in tmp_path.iterdir() if entry.suffix == ".html") == ["folder.html"]


def test_without_the_extra_its_name_is_said(report, tmp_path, monkeypatch):
    from task_app.analyze import database_report

    monkeypatch.setattr(database_report, "find_spec", lambda name: None if name == "jinja2" else sys)
    with pytest.raises(TaskAppError, match=r"needs jinja2, which the extra `train` installs: pip install") as caught:
        database_report.write_database_report(tmp_path / "p.html", report)
    assert not isinstance(caught.value, ConfigError)
    assert not (tmp_path / "p.html").exists()
