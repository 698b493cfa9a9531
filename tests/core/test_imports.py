"""What only some commands import: an extra that is not installed is named, and the garbage collector goes on after."""

from __future__ import annotations

import gc

import pytest

from task_app.core.errors import ConfigError
from task_app.core.imports import extra_imports


@pytest.fixture(autouse=True)
def collector():
    """The collector as it was, with nothing kept from it."""
    collecting = gc.isenabled()
    yield
    gc.unfreeze()
    (gc.enable if collecting else gc.disable)()


@pytest.mark.parametrize("collecting", [True, False])
def test_nothing_is_collected_within_and_all_that_is_there_afterwards_is_left_alone(collecting):
    (gc.enable if collecting else gc.disable)()
    before = gc.get_freeze_count()
    with extra_imports("train"):
        assert not gc.isenabled()
    assert gc.isenabled() is collecting
    assert gc.get_freeze_count() > before


def test_a_package_that_is_not_installed_is_named_with_its_extra():
    said = "no_such_package is not installed; it comes with the extra 'ray': pip install 'crafter-task-app\\[ray\\]'"
    with pytest.raises(ConfigError, match=said), extra_imports("ray"):
        import no_such_package.inner  # type: ignore # noqa: F401
    assert gc.isenabled()


@pytest.mark.parametrize("name", [None, "task_app.no_such_module"])
def test_a_module_of_our_own_that_is_missing_is_a_fault(name):
    with pytest.raises(ModuleNotFoundError), extra_imports("train"):
        raise ModuleNotFoundError("gone", name=name)
