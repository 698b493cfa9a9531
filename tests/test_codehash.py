"""Which code runs, as one hash."""

from __future__ import annotations

from pathlib import Path

import task_app
from task_app.codehash import changed_code, code_hash, hash_sources


def test_the_code_hash_is_of_source_names_and_bytes(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.py").write_text("1")
    (tmp_path / "notes.txt").write_text("1")
    first = hash_sources(tmp_path)
    (tmp_path / "notes.txt").write_text("2")
    assert hash_sources(tmp_path) == first
    (tmp_path / "a" / "x.py").write_text("2")
    second = hash_sources(tmp_path)
    (tmp_path / "a" / "x.py").rename(tmp_path / "a" / "y.py")
    assert len({first, second, hash_sources(tmp_path)}) == 3
    assert len(code_hash()) == 64


def test_the_package_hashes_its_own_files():
    assert hash_sources(Path(task_app.__file__).parent) == code_hash()


def test_what_to_warn_of_when_other_code_made_a_checkpoint():
    assert changed_code(code_hash()) is None
    assert "does not say which code" in str(changed_code(None))
    assert "made by other code (000000000000)" in str(changed_code("0" * 64))
