"""docs/verify.md lists every verdict with the meaning the code gives it."""

from __future__ import annotations

import re
from pathlib import Path

from task_app.rollout.verify import KINDS

PAGE = Path(__file__).parents[2] / "docs" / "verify.md"


def test_the_table_of_verdicts_is_the_codes():
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert dict(rows) == KINDS
    assert [kind for kind, _ in rows] == list(KINDS)
