"""What sampling and training need of a model, whatever its kind: one abstract class, no model of its own.

A network reads prompts (`renderer`), may be held to a grammar (`table`), and computes in two halves: hidden
states at the places that predict a token, and logits from them. The halves are apart so that logits are
made only where they count, and in pieces.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from task_app.config.models import ModelSection
from task_app.core.task import TaskSpec
from task_app.core.types import AssistantMessage, Message, ParseFailure

if TYPE_CHECKING:
    from task_app.train.masks import GrammarTable
    from task_app.train.rows import Row

__all__ = ["Network", "PromptRenderer", "autocast"]


class PromptRenderer(Protocol):
    """Messages ↔ token ids, the same for SFT, RL and evaluation.

    hash           changes with anything that would give other ids for the same messages
    prefix_length  leading ids that all prompts of a run share; stored once
    """

    hash: str
    prefix_length: int

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[dict] = ()) -> tuple[int, ...]:
        """The ids of one decision's prompt, up to where the answer begins. Raises TrainError."""
        ...

    def answer_ids(self, message: AssistantMessage) -> tuple[int, ...] | ParseFailure:
        """The ids of an answer, its end included, or why it cannot be said."""
        ...

    def message(self, ids: Sequence[int]) -> AssistantMessage:
        """What a sampled answer says."""
        ...


class Network(ABC):
    """A model with all that is needed to read a task's prompts and score its answers."""

    spec: TaskSpec
    settings: ModelSection
    device: torch.device
    renderer: PromptRenderer
    table: GrammarTable | None
    """The grammar answers are held to; None where they are free text."""
    model: nn.Module

    @abstractmethod
    def hidden(self, model: nn.Module, rows: Sequence[Row]) -> Tensor:
        """Hidden states (N, H) that predict the rows' chosen tokens, row by row. `model` is the network's own or
        a frozen copy of it."""

    @abstractmethod
    def logits(self, model: nn.Module, hidden_N_H: Tensor) -> Tensor:
        """Logits (N, V) of hidden states."""

    @property
    def grammar_hash(self) -> str:
        """The grammar's hash, "" without one."""
        return self.table.hash if self.table is not None else ""

    def parameters(self) -> list[nn.Parameter]:
        """What is trained."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]


@contextlib.contextmanager
def autocast(settings: ModelSection, device: torch.device) -> Iterator[None]:
    """Compute in `model.dtype`; weights, sums of the loss and optimiser states stay float32."""
    if settings.dtype == "float32":
        yield
        return
    with torch.autocast(device.type, dtype=torch.bfloat16):
        yield
