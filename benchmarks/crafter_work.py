"""Work for the trainer's benchmarks: Crafter episodes really played, as prompts and training rows of a small model.

Everything follows from the seeds, so that two processes make the same rows. It measures nothing.

Episodes are the random player's, 1 to 5 actions a call. A row is one episode whose history is kept in full (every
prompt begins with the one before and its answer), cut after a number of decisions drawn evenly from 1 to `most`: the
spread that unreadable answers and early deaths make. Its advantage is drawn from a normal distribution.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chat_models import make_tokenizer, write_model

from task_app.apps import get_app
from task_app.config.training import ModelSection
from task_app.core.task import TaskSpec
from task_app.core.types import Decision, Episode, ParseFailure, StepRewardFlags
from task_app.policies import ScriptedPolicy
from task_app.rollout import Limits, plan_groups, play
from task_app.train.chat_network import ChatNetwork, build_chat_network
from task_app.train.rows import Row

__all__ = [
    "SHAPE",
    "SMALL_SHAPE",
    "crafter",
    "make_folder",
    "make_network",
    "play_random",
    "prompts_of_turn",
    "ragged_rows",
]

SHAPE = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 768,
    "vocab_size": 2048,
    "max_position_embeddings": 8192,
}
"""3.7 M parameters; the words of Crafter are fewer than the vocabulary, as with any larger model."""
SMALL_SHAPE = SHAPE | {"hidden_size": 64, "num_hidden_layers": 2, "head_dim": 16, "intermediate_size": 128}
"""Enough to see that all of a benchmark runs."""
LONGEST_ANSWER = 128


def crafter(**options: Any) -> TaskSpec:
    """Crafter with these options."""
    app = get_app("crafter")
    return TaskSpec(app, app.options_model.model_validate(options))


def play_random(spec: TaskSpec, worlds: int, members: int, decisions: int) -> list[Episode]:
    """Episodes of the random player, `members` in each world, in order."""
    policy = ScriptedPolicy(spec.app, "random", spec.app.baselines(spec.options)["random"])
    plans = plan_groups(range(worlds), members, run_id="benchmark")
    return play(plans, spec, policy, Limits(decisions), StepRewardFlags(), lambda episode: None, concurrency=1)


def make_folder(folder: Path, shape: dict[str, Any] = SHAPE) -> int:
    """Model and tokenizer in `folder`, the latter learnt from a few episodes; the number of parameters."""
    spec = crafter()
    texts = [spec.app.system_prompt(spec.options), str(spec.app.tools(spec.options))]
    for episode in play_random(spec, 4, 2, 12):
        for decision in episode.decisions:
            texts += [str(message["content"]) for message in decision.messages]
            texts += [call.arguments for call in decision.completion.message.tool_calls]
    return write_model(folder, make_tokenizer(texts, int(shape["vocab_size"])), shape)


def make_network(folder: Path, spec: TaskSpec | None = None, **changes: Any) -> ChatNetwork:
    """The network of `folder`, its history kept in full unless changed."""
    settings = {"path": str(folder), "history": "full", "max_new_tokens": LONGEST_ANSWER, "max_prompt_tokens": 8000}
    return build_chat_network(spec or crafter(), ModelSection(**(settings | changes)), 0)


def prompts_of_turn(network: ChatNetwork, episodes: Sequence[Episode], turn: int) -> list[tuple[int, ...]]:
    """The prompt of decision `turn` of every episode that has it, earlier ones repeated as `model.history` says."""
    found = []
    for episode in episodes:
        if len(episode.decisions) >= turn:
            earlier = [part for one in episode.decisions[: turn - 1] for part in (one.messages[-1], _said(one))]
            system, user = episode.decisions[turn - 1].messages
            found.append(network.renderer.prompt_ids([system, *earlier, user]))
    return found


def ragged_rows(network: ChatNetwork, count: int, most: int, seed: int = 0) -> tuple[list[Row], list[int]]:
    """`count` rows, see the top, without log-probabilities; and the length of each one's first prompt."""
    draw = random.Random(seed)
    rows, firsts = [], []
    for episode in play_random(network.spec, -(-count // 4), 4, most)[:count]:
        kept = episode.decisions[: draw.randint(1, most)]
        row, first = _row(network, kept, draw.gauss(0, 1))
        rows.append(row)
        firsts.append(first)
    return rows, firsts


def _row(network: ChatNetwork, decisions: Sequence[Decision], advantage: float) -> tuple[Row, int]:
    """One row of all decisions, and the length of the first prompt."""
    renderer = network.renderer
    ids: tuple[int, ...] = ()
    positions: list[int] = []
    spans, first, messages = [], 0, list(decisions[0].messages[:1])
    for decision in decisions:
        messages.append(decision.messages[-1])
        prompt, answer = renderer.prompt_ids(messages), renderer.answer_ids(decision.completion.message)
        assert not isinstance(answer, ParseFailure)
        assert prompt[: len(ids)] == ids, "the history is not kept in full"
        first = first or len(prompt)
        positions += range(len(prompt) - 1, len(prompt) - 1 + len(answer))
        spans.append(len(answer))
        ids = prompt + answer
        messages.append(_said(decision))
    row = Row(
        input_ids=ids[:-1],
        positions=tuple(positions),
        targets=tuple(ids[position + 1] for position in positions),
        states=(-1,) * len(positions),
        sampler_logprobs=(0.0,) * len(positions),
        spans=tuple(spans),
        advantages=(advantage,) * len(spans),
    )
    return row, first


def _said(decision: Decision) -> dict[str, Any]:
    return decision.completion.message.to_wire()
