"""Rules, names and daylight as the package has them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from crafter import constants, engine
from crafter.env import Env

from task_app.apps.crafter.data import DATA, package_folder, read_data
from task_app.apps.crafter.engine import rules
from task_app.apps.crafter.engine.protocol import LAST_STEP
from task_app.core.errors import EnvError


def test_the_data_is_what_the_package_reads() -> None:
    assert {name: getattr(constants, name) for name in DATA} == DATA
    assert set(DATA) == {
        "actions", "materials", "walkable", "items", "collect", "place", "make", "achievements"
    }  # fmt: skip
    assert (package_folder() / "assets").is_dir()


@pytest.mark.parametrize("line", ["  wood: [1, 2", "wood: 1", "   - deep", "  wood: {max: 9"])
def test_a_line_that_is_not_understood_is_an_error(line: str) -> None:
    with pytest.raises(EnvError, match="not understood"):
        read_data(f"items:\n{line}\n")


def test_daylight_is_the_packages_at_every_step() -> None:
    package = Env.__new__(Env)
    package._world = engine.World((1, 1), [], (1, 1))
    expected = []
    for step in range(LAST_STEP + 1):
        package._step = step
        package._update_time()
        expected.append(package._world.daylight)
    assert list(rules.daylight()) == expected


PLAY = """
import sys
from task_app.apps.crafter.engine import CrafterEnv
from task_app.apps.crafter.engine.reference import ReferenceEngine
for engine in (None, ReferenceEngine()):
    env = CrafterEnv(engine=engine)
    env.reset(1)
    env.step("do")
print(sorted({"crafter", "gym", "imageio", "numba", "opensimplex", "PIL", "ruamel"} & set(sys.modules)))
"""


def test_playing_imports_neither_the_package_nor_what_it_needs() -> None:
    run = subprocess.run([sys.executable, "-c", PLAY], stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    assert run.stdout.strip() == "[]"
