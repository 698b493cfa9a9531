"""Groups on containers: `map` as Modal's functions have it, and what comes back when a container is lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from task_app.config import load_config
from task_app.core.errors import ConfigError, TaskAppError
from task_app.core.wire import episode_bytes
from task_app.deploy.image import BUILD_FILES, LEFT_OUT, pins, project_folder
from task_app.deploy.rollouts import ModalExecutor, executor_of
from task_app.runs import play_config
from task_app.scale import driver, play_group, play_scaled
from task_app.store import TraceStore


class Function:
    """Plays every text it is given; call number `lost` fails instead, as Modal reports it."""

    def __init__(self, failure: BaseException, lost: int) -> None:
        self.failure, self.lost, self.calls = failure, lost, 0

    def map(self, texts: Iterable[str], *, order_outputs: bool, return_exceptions: bool) -> Iterator[object]:
        assert order_outputs
        assert return_exceptions
        for text in texts:
            self.calls += 1
            yield self.failure if self.calls == self.lost else play_group(text)


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "PAUSE_S", 0.0)
    small = {"policy.name": "expert", "rollout.seeds": "0:3", "rollout.group_size": 2, "rollout.max_decisions": 3}
    return load_config(None, {**small, "scale.executor": "modal", "rollout.trace_db": str(tmp_path / "t.db")})


def test_a_lost_container_costs_a_try_and_the_episodes_are_those_of_one_process(config, tmp_path):
    function = Function(RuntimeError("container gone"), lost=2)
    episodes = play_scaled(
        config, ModalExecutor(function), run_id="r", command="rollout", progress=lambda episode: None
    )
    assert function.calls == 4
    here = config.model_copy(update={"rollout": config.rollout.model_copy(update={"trace_db": tmp_path / "h.db"})})
    expected = play_config(here, run_id="r", command="rollout", progress=lambda episode: None)
    assert [episode_bytes(e) for e in episodes] == [episode_bytes(e) for e in expected]
    with TraceStore.open(tmp_path / "t.db", read_only=True) as store:
        assert [e.episode_id for e in store.episodes()] == [e.episode_id for e in episodes]


def test_what_a_container_refuses_on_purpose_stops_the_run(config):
    workers = ModalExecutor(Function(ConfigError("deploy it again"), lost=1))
    with pytest.raises(ConfigError, match="deploy it again"):
        play_scaled(config, workers, run_id="r", command="rollout", progress=lambda episode: None)


def test_without_credentials_modal_is_not_asked(config, monkeypatch, tmp_path):
    pytest.importorskip("modal", reason="needs the extra `modal`")
    from modal.config import config as modal_settings

    for name in ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"):
        monkeypatch.delenv(name, raising=False)
    if modal_settings.get("token_id"):
        pytest.skip("this machine has credentials for Modal")
    with pytest.raises(TaskAppError, match="Modal cannot be asked"), executor_of(config):
        pass


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--executor", "rey"), 2, "'inprocess', 'ray' or 'modal'"),
        (("--executor", "ray", "--policy", "embedded"), 2, "--executor inprocess"),
        (("--executor", "modal", "--base-url", "http://127.0.0.1:1"), 2, "--base-url plays in this process"),
        (("--executor", "modal"), 1, "Modal cannot be asked"),
    ],
)
def test_the_command_says_what_it_cannot_do_and_leaves_no_database(task_app, tmp_path, arguments, code, said):
    done = task_app("rollout", *arguments, MODAL_CONFIG_PATH=str(tmp_path / "none.toml"))
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert said in done.stderr
    assert list((tmp_path / "work").iterdir()) == []


def test_the_source_sent_along_is_what_an_installation_needs_and_nothing_compiled():
    modal = pytest.importorskip("modal", reason="needs the extra `modal`")
    left_out = modal.FilePatternMatcher(*LEFT_OUT)
    root = project_folder()
    assert all((root / name).is_file() for name in BUILD_FILES)
    package = root / "task_app"
    sent = {path.relative_to(package) for path in package.rglob("*") if path.is_file()}
    sent = {str(path) for path in sent if not left_out(path)}
    for needed in (
        "server/viewer/static/index.html",
        "apps/crafter/engine/_native.c",
        "apps/crafter/engine/csrc/step.h",
    ):
        assert needed in sent
    assert not [path for path in sent if path.endswith((".so", ".pyc")) or "__pycache__" in path]
    assert any(pin.startswith("fastapi>=") for pin in pins(()))
    assert any(pin.startswith("torch>=") for pin in pins(("train",)))
