"""What sampling and training need of a model, whatever its kind: one abstract class, no model of its own.

A network reads prompts (`renderer`), may be held to a grammar (`table`), and computes in two halves: hidden
states at the places that predict a token, and logits from them. The halves are apart so that logits are
made only where they count, and in pieces. It also says how it is sampled, and how its weights are kept.
"""

from __future__ import annotations

import contextlib
import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from task_app.config.training import ModelSection
from task_app.core.errors import TrainError
from task_app.core.task import TaskSpec
from task_app.core.types import AssistantMessage, DecisionRequest, Message, ParseFailure
from task_app.train.rows import Row, padded_tokens

if TYPE_CHECKING:
    from task_app.train.masks import GrammarTable
    from task_app.train.sampler import Answer

__all__ = ["MEMORY_ADVICE", "AnswerSampler", "Conversation", "Network", "PromptRenderer", "autocast", "memory_guard"]

MEMORY_ADVICE = "training.micro_batch_tokens (or set model.gradient_checkpointing, model.lora_rank or bfloat16)"
"""What to change when training runs out of memory."""


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


class AnswerSampler(Protocol):
    """Samples answers whose ids and log-probabilities are the trainer's own.

    batched  whether prompts are best given all together; else each by itself, from many threads
    """

    batched: bool = True

    def take_weights(self, version: str) -> None:
        """The network has the weights called `version` from now on; nothing to do where it is sampled itself.

        Raises TrainError when whatever samples cannot have them.
        """

    def sample(self, prompts: Sequence[Sequence[int]], keys: Sequence[str]) -> list[Answer]:
        """One answer per prompt, drawn with the noise its key names. Raises TrainError, or PolicyError where another
        process samples and fails."""
        ...

    def close(self) -> None:
        """Give back what is held outside this process; nothing is sampled afterwards."""


class Conversation:
    """The prompts of running episodes. This one keeps nothing between decisions; one that repeats earlier
    decisions overrides it."""

    def __init__(self, renderer: PromptRenderer) -> None:
        self._renderer = renderer

    def prompts(self, requests: Sequence[DecisionRequest]) -> list[tuple[int, ...]]:
        """One prompt per request. Raises TrainError, or ContextOverflow naming the episodes that outgrew it."""
        return [self._renderer.prompt_ids(request.messages, request.tools) for request in requests]

    def answered(self, request: DecisionRequest, ids: Sequence[int]) -> None:
        """Keep what was said."""

    def end(self, episode_id: str) -> None:
        """Forget an episode."""


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

    @abstractmethod
    def sampler(self, temperature: float) -> AnswerSampler:
        """What samples this network. Raises ConfigError for a temperature that cannot be trained on."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write weights, shape and tokenizer into a folder. Raises OSError."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Read back the weights `save` wrote. Raises OSError, RuntimeError or SafetensorError for damaged ones."""

    def forward_tokens(self, lengths: Sequence[int]) -> int:
        """Tokens a forward pass over rows of these lengths computes, what fills them up included."""
        return padded_tokens(lengths)

    def conversation(self) -> Conversation:
        """What makes the prompts of running episodes."""
        return Conversation(self.renderer)

    def reference(self) -> nn.Module:
        """The weights as they are now, frozen; to be given to `hidden` and `logits`, without gradients."""
        return copy.deepcopy(self.model).requires_grad_(False)

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """Parts of `model` that compute by a forward of their own, whose weights may therefore be gathered one part
        at a time; none where the model only works as a whole."""
        return []

    @property
    def base_hash(self) -> str:
        """Identity of weights that a checkpoint needs but does not hold; "" where it holds all."""
        return ""

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


@contextlib.contextmanager
def memory_guard(advice: str) -> Iterator[None]:
    """Turn the device's running out of memory into a TrainError that says what to lower."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in reason:
            raise TrainError(f"out of memory: lower {advice} ({reason})") from error
        raise
