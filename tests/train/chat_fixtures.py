"""Folders of the tiny models, made once, and networks of them on the speaking toy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from task_app.config.training import ModelSection
from task_app.core.task import TaskSpec
from task_app.core.types import Completion, DecisionRequest, TokenTrace
from task_app.train.chat_network import ChatNetwork, build_chat_network
from tests.train.chat_toy import ChatLineApp
from tests.train.conftest import LineOptions
from tests.train.tiny_models import SHAPES, write_model

SYSTEM = {"role": "system", "content": "Walk to the right."}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder per shape."""
    root = tmp_path_factory.mktemp("models")
    return {shape: write_model(root / shape, shape) for shape in SHAPES}


@pytest.fixture(scope="session")
def chat_line() -> TaskSpec:
    """The speaking toy."""
    return TaskSpec(ChatLineApp(), LineOptions())


def model_settings(folder: Path | str, **changes: Any) -> dict[str, Any]:
    """`[model]` of a tiny model."""
    return {"path": str(folder), "max_prompt_tokens": 600, "max_new_tokens": 6, **changes}


def tokens_of(completion: Completion) -> TokenTrace:
    """The tokens of a completion, which those of these networks always have."""
    assert completion.tokens is not None
    return completion.tokens


@pytest.fixture
def chat(folders: dict[str, Path], chat_line: TaskSpec) -> Callable[..., ChatNetwork]:
    """Make a network: shape, then `[model]` keys."""

    def make(shape: str = "qwen3", *, seed: int = 0, **changes: Any) -> ChatNetwork:
        return build_chat_network(chat_line, ModelSection(**model_settings(folders[shape], **changes)), seed)

    return make


@pytest.fixture
def asks(chat_line: TaskSpec) -> Callable[..., DecisionRequest]:
    """Make the request of one decision of the speaking toy."""

    def make(text: str, turn: int = 1, *, episode: str = "e", key: str | None = None) -> DecisionRequest:
        return DecisionRequest(
            episode_id=episode,
            turn=turn,
            max_decisions=9,
            seed=0,
            member=0,
            noise_key=key or f"{episode}/{turn}",
            messages=(SYSTEM, {"role": "user", "content": text}),
            tools=chat_line.app.tools(chat_line.options),
            observation=0,
        )

    return make
