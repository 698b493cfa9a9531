"""One hash of the code that runs: this package's own source files by name and content. It only reads."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import task_app

__all__ = ["SUFFIXES", "changed_code", "code_hash", "hash_sources"]

SUFFIXES = frozenset({".py", ".c", ".h", ".html"})
"""What counts as source: what is written by hand and changes what the program does."""


@cache
def code_hash() -> str:
    """SHA-256 of the package as it was when first asked for: files edited while a run goes on do not run in it."""
    return hash_sources(Path(task_app.__file__).parent)


def hash_sources(folder: Path) -> str:
    """SHA-256 over relative path and bytes of every source file below `folder`, sorted by path."""
    total = hashlib.sha256()
    files = (path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    for path in sorted(files, key=lambda path: path.relative_to(folder).as_posix()):
        name, content = path.relative_to(folder).as_posix().encode(), path.read_bytes()
        # Lengths come first, so that no two different sets of files can be the same run of bytes.
        total.update(b"%d %d " % (len(name), len(content)) + name + content)
    return total.hexdigest()


def changed_code(stored: str | None) -> str | None:
    """What to warn of when a checkpoint was made by other code than runs now; None when it was not."""
    if stored == code_hash():
        return None
    if stored is None:
        return "the checkpoint does not say which code made it, so the rest of the run may not fit what is there"
    return (
        f"the checkpoint was made by other code ({stored[:12]}) than runs now ({code_hash()[:12]}): what follows may "
        "not be what an uninterrupted run would have done"
    )
