"""A file appears whole or not at all, and a name that is taken stays whoever's it is."""

from __future__ import annotations

import os

import pytest

from task_app.core.errors import ConfigError
from task_app.store.files import made_beside, refuse_existing, write_whole


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_folders_are_made_and_an_older_file_is_replaced(tmp_path):
    path = tmp_path / "new" / "f.txt"
    write_whole(path, "é\n")
    write_whole(path, "second")
    assert (path.read_text(encoding="utf-8"), names(path.parent)) == ("second", ["f.txt"])


def test_a_failure_leaves_the_older_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "f.txt"
    path.write_text("older")

    def fail():
        with made_beside(path, replace=True) as beside:
            beside.write_text("half")
            beside.with_name(f"{beside.name}-wal").write_text("a database's log")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (path.read_text(), names(tmp_path)) == ("older", ["f.txt"])


@pytest.mark.parametrize("links", [True, False], ids=["with links", "a file system without links"])
def test_a_name_taken_meanwhile_is_not_replaced(tmp_path, monkeypatch, links):
    def no_link(source, target):
        raise PermissionError("no links here")

    if not links:
        monkeypatch.setattr(os, "link", no_link)
    path = tmp_path / "f.txt"
    with made_beside(path, replace=False) as beside:
        beside.write_text("first")
    assert (path.read_text(), names(tmp_path)) == ("first", ["f.txt"])
    path.unlink()

    def lose_the_race():
        with made_beside(path, replace=False) as beside:
            beside.write_text("mine")
            path.write_text("another's")

    with pytest.raises(ConfigError, match="exists already"):
        lose_the_race()
    assert (path.read_text(), names(tmp_path)) == ("another's", ["f.txt"])


def test_a_place_that_cannot_be_written_is_the_outputs_fault(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "f.txt", tmp_path):
        with pytest.raises(ConfigError, match="cannot write") as caught:
            write_whole(path, "x")
        assert caught.value.field == "output"


def test_a_dangling_link_is_a_name_that_is_taken(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="exists already"):
        refuse_existing(tmp_path / "link")
    refuse_existing(tmp_path / "free")
