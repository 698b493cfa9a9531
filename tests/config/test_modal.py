"""[modal] and [scale]: limits that must agree, names Modal takes, and unknown keys."""

from __future__ import annotations

import pytest

from task_app.config import load_config
from task_app.core.errors import ConfigError


def test_defaults_cost_nothing_while_nobody_calls():
    config = load_config()
    assert config.modal.min_containers == 0
    assert config.scale.executor == "inprocess"


def test_one_container_serves_unless_more_are_asked_for():
    """A second one knows nothing of the first one's sessions, aborts, idempotency keys and limits."""
    assert load_config().modal.max_containers == 1
    assert load_config(None, {"modal.max_containers": 3}).modal.max_containers == 3


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("modal.min_containers", 5, "min_containers 5 is above max_containers 1"),
        ("modal.target_inputs", 65, "target_inputs 65 is above max_inputs 64"),
        ("modal.name", "two words", "modal.name"),
        ("modal.volume", "", "modal.volume"),
        ("modal.gpu", "H100:9", "modal.gpu"),
        ("modal.gpu_timeout_s", 86_401, "86400"),
        ("modal.gpus", 2, "did you mean"),
        ("scale.executor", "rey", "'inprocess', 'ray' or 'modal'"),
        ("scale.tries", 0, "scale.tries"),
    ],
)
def test_what_cannot_be_is_refused_by_name(key, value, said):
    with pytest.raises(ConfigError) as caught:
        load_config(None, {key: value})
    assert said in str(caught.value)


@pytest.mark.parametrize("gpu", ["", "L4", "A100-80GB", "H100:2", "H100!", "B200+"])
def test_gpus_are_written_as_modal_writes_them(gpu):
    assert load_config(None, {"modal.gpu": gpu}).modal.gpu == gpu
