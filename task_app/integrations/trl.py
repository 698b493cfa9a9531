"""A task app as TRL's `environment_factory`: GRPOTrainer drives the episodes, rewards are this project's.

What TRL 1.16 asks of an environment, and all it relies on here: a class without constructor arguments; `reset(**row)`
with the columns of a dataset row, whose text is appended to the last user message; every other public method is a
tool, called by name with the model's arguments, whose text is the tool's answer; `get_reward()`, asked once when a
rollout is complete, None for one without a reward. Properties are not tools, and reward functions read them from
`environments`.

Episodes are played in the trainer's process, one world a rollout: no server and no key are needed. Imports neither
trl nor torch.
"""

from __future__ import annotations

import inspect
import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from math import fsum
from pathlib import Path
from typing import Any, ClassVar, Literal

from task_app.config import Config
from task_app.core.errors import ConfigError
from task_app.core.task import TaskSpec
from task_app.core.types import AssistantMessage, Completion, StepRewardFlags, ToolCall
from task_app.rollout import EpisodePlan, EpisodeRun, Limits
from task_app.rollout.episode import system_message
from task_app.server.driving import rewards_so_far
from task_app.store import TraceStore
from task_app.wiring import make_spec

__all__ = ["TaskEnvironment", "dataset_rows", "environment_class"]

POLICY = "trl"
_STOPPED = "stopped"
"""Why an episode ends that neither the world nor a limit ended: the model called no tool any more."""
_TYPES: Mapping[str, type] = {"string": str, "integer": int, "number": float, "boolean": bool, "object": dict}


def environment_class(
    app: str = "crafter",
    *,
    options: Mapping[str, Any] | None = None,
    flags: StepRewardFlags | None = None,
    max_decisions: int = 20,
    trace_db: Path | str | None = None,
) -> type[TaskEnvironment]:
    """The class to hand to `GRPOTrainer(environment_factory=…)`; its tools are those of the task app.

    `flags` default to those of an empty config (docs/event_rewards.md). With `trace_db` every episode is stored there,
    run `trl`. Raises ConfigError for an unknown app or option, and for a task without tools: TRL acts by tools alone.
    """
    spec = make_spec(app, options or {}, field="options")
    tools = spec.app.tools(spec.options)
    if not tools:
        raise ConfigError(f"task app {app!r} has no tools, and TRL's environments act by tools alone", field="app")
    if max_decisions < 1:
        raise ConfigError(f"max_decisions must be at least 1, got {max_decisions}", field="max_decisions")
    body: dict[str, Any] = {tool["function"]["name"]: _tool(tool["function"]) for tool in tools}
    taken = sorted(body.keys() & set(dir(TaskEnvironment)))
    if taken:
        raise ConfigError(f"the tool {taken[0]!r} has the name of something that every environment has", field="app")
    body |= {
        "_spec": spec,
        "_flags": flags or Config().step_rewards,
        "_limits": Limits(max_decisions),
        "_trace_db": None if trace_db is None else Path(trace_db),
        "__doc__": f"{spec.app.title}, one episode at a time.",
    }
    return type(f"{spec.app.name.title()}Environment", (TaskEnvironment,), body)


def dataset_rows(environment: type[TaskEnvironment], seeds: Iterable[int]) -> list[dict[str, Any]]:
    """A row a world: the task's system prompt, a user message that `reset` fills, and the seed `reset` is given."""
    system = system_message(environment._spec)
    return [{"prompt": [system, {"role": "user", "content": ""}], "seed": seed} for seed in seeds]


class TaskEnvironment:
    """One rollout's environment; made and reset by the trainer. Its subclasses have the tools of one task."""

    _spec: ClassVar[TaskSpec]
    _flags: ClassVar[StepRewardFlags]
    _limits: ClassVar[Limits]
    _trace_db: ClassVar[Path | None]

    def __init__(self) -> None:
        self._run: EpisodeRun | None = None
        self._stored = True

    def reset(self, seed: int | None = None, **row: Any) -> str:
        """Begin an episode in the world of the row's `seed` and show it. Other columns are the trainer's own.

        Raises ConfigError for a row without a seed: worlds drawn here would differ within a group.
        """
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**31 - 1:
            raise ConfigError(f"a dataset row needs a column seed from 0 to 2**31 - 2, got {seed!r}", field="seed")
        self._end()
        episode_id = uuid.uuid4().hex
        plan = EpisodePlan(POLICY, f"alone-{episode_id}", 0, seed, f"0/-/{seed}/0")
        self._run = EpisodeRun(plan, self._spec, self._limits, self._flags, POLICY, "", episode_id)
        self._stored = False
        return self._shown()

    def get_reward(self) -> float | None:
        """The episode's return under the flags in force; None, never 0, where the environment failed.

        The rollout is complete: an episode that still runs ends here, truncated.
        """
        self._end()
        return self.reward

    @property
    def reward(self) -> float | None:
        """Σ r of the decisions so far; None where one is not known yet, or none will ever be."""
        rewards = self.decision_rewards
        failed = self._run is not None and self._run.over and not self._run.episode().rewarded
        known = [reward for reward in rewards if reward is not None]
        return fsum(known) if len(known) == len(rewards) and not failed else None

    @property
    def decision_rewards(self) -> list[float | None]:
        """r, one number a decision, in order: what a reward or credit function may use instead of one sum."""
        return [] if self._run is None else rewards_so_far(self._run)

    @property
    def decision_records(self) -> list[dict[str, Any]]:
        """The decision records `{turn, ach_delta, unique_delta, all, unique}`; empty in modes that have none."""
        decisions = [] if self._run is None else self._run.decisions
        return [decision.rewards.to_wire() for decision in decisions if decision.rewards is not None]

    @property
    def outcome(self) -> float | None:
        """The task's one number of an ended episode; None before, and where the environment failed."""
        return self._run.episode().outcome if self._run is not None and self._run.over else None

    @property
    def done(self) -> bool:
        """Whether the episode has ended."""
        return self._run is not None and self._run.over

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Play one tool call as it was said; one that the task cannot read is a decision without actions."""
        run = self._run
        if run is None or run.over:
            return "The episode is over; nothing was executed."
        call = ToolCall(name, json.dumps(arguments, default=str))
        message = AssistantMessage(None, (call,), "tool_calls")
        run.apply(Completion(message, f"{POLICY}-{run.request().noise_key}"))
        failure = run.decisions[-1].failure if run.decisions else None
        said = f"Nothing was executed: {failure.detail}.\n" if failure else ""
        if not run.over:
            return said + self._shown()
        self._end()
        return f"{said}The episode is over ({run.episode().cause})."

    def _shown(self) -> str:
        """The observation as the task's prompt shows it."""
        assert self._run is not None
        if self._run.over:
            return "The environment failed; there is no episode."
        content = self._run.request().messages[-1]["content"]
        if isinstance(content, str):
            return content
        return "\n".join(part["text"] for part in content if part.get("type") == "text")

    def _end(self) -> None:
        """End the episode if it still runs, and store it once; one in which nothing was said is not stored."""
        run = self._run
        if run is None or self._stored:
            return
        if not run.over:
            run.truncate(_STOPPED)
        if self._trace_db is not None and (run.decisions or not run.episode().rewarded):
            with TraceStore.open(self._trace_db) as store:
                store.write_run(POLICY, "trl", {"task": run.spec.app.name})
                store.write_episode(run.episode())
        self._stored = True


def _tool(function: Mapping[str, Any]) -> Callable[..., str]:
    """A method with the tool's name, and the signature and docstring from which TRL makes its schema again.

    It takes whatever the model says: what is wrong with it is the task's to judge.
    """
    name, parameters = function["name"], function["parameters"]
    properties: Mapping[str, Any] = parameters.get("properties", {})
    required = set(parameters.get("required", ()))

    def call(self: TaskEnvironment, **arguments: Any) -> str:
        return self._call(name, arguments)

    hints = {key: _hint(schema) for key, schema in properties.items()}
    signature = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for key, hint in hints.items():
        default = inspect.Parameter.empty if key in required else None
        signature.append(
            inspect.Parameter(key, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=hint, default=default)
        )
    lines = [function.get("description", name), "", "Args:"]
    lines += [f"    {key}: {schema.get('description', key)}" for key, schema in properties.items()]
    lines += ["", "Returns:", "    What is seen afterwards."]
    call.__name__ = call.__qualname__ = name
    call.__doc__ = "\n".join(lines)
    call.__annotations__ = {**hints, "return": str}
    call.__signature__ = inspect.Signature(signature, return_annotation=str)  # type: ignore[attr-defined]
    return call


def _hint(schema: Mapping[str, Any]) -> Any:
    """The type that a parameter's JSON schema describes."""
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    if schema.get("type") == "array":
        return list[_hint(schema["items"])] if "items" in schema else list
    return _TYPES.get(schema.get("type", ""), str)
