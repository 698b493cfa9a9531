"""Crafter as a `TaskApp`: the folder's parts put together. Holds no logic of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from task_app.apps.crafter import rules, text, tool
from task_app.apps.crafter.engine import CrafterEnv, which_engine
from task_app.apps.crafter.expert import ExpertAgent
from task_app.apps.crafter.options import CrafterOptions
from task_app.apps.crafter.planner import Planner
from task_app.apps.crafter.scripted import RandomAgent
from task_app.apps.crafter.view import CrafterView
from task_app.core.errors import EnvError
from task_app.core.grammar import Grammar
from task_app.core.task import AgentFactory, Environment, Picture, TaskApp, TurnContext
from task_app.core.types import AssistantMessage, ParseFailure, PastDecision

__all__ = ["PICTURE_SIZE", "CrafterApp"]

PICTURE_SIZE = 144
"""Pixels a side, 16 a tile: sharp enough to be shown larger, and drawn fast even at night."""


class CrafterApp(TaskApp[CrafterOptions]):
    """Survive, gather and craft; the outcome is the number of different achievements (0 to 22)."""

    name = "crafter"
    version = "1"
    title = "Crafter"
    description = "Survive, gather and craft in an open world; 22 achievements are the events."
    aliases = ("grpo-crafter",)
    policy_aliases: Mapping[str, str] = {"crafter-react": "chat"}
    outcome_is_unique_events = True
    event_names = rules.ACHIEVEMENTS
    action_names = rules.ACTIONS
    options_model = CrafterOptions
    renderer_version = text.RENDERER_VERSION

    def make_env(self, options: CrafterOptions) -> Environment:
        return CrafterEnv(max_steps=options.max_steps, night_draws=options.night_draws)

    def tools(self, options: CrafterOptions) -> tuple[dict[str, Any], ...]:
        return tool.tools(options)

    def system_prompt(self, options: CrafterOptions) -> str:
        return tool.system_prompt(options)

    def observe(
        self,
        observation: CrafterView,
        history: Sequence[PastDecision],
        context: TurnContext,
        options: CrafterOptions,
    ) -> list[dict[str, Any]]:
        words = text.render(
            observation,
            history,
            context,
            history_calls=options.history_calls,
            history_clip=options.history_clip,
        )
        return [{"type": "text", "text": words}]

    def parse(self, message: AssistantMessage, options: CrafterOptions) -> tuple[str, ...] | ParseFailure:
        return tool.parse(message, options)

    def say(self, actions: Sequence[str]) -> AssistantMessage:
        return tool.say(actions)

    def outcome(self, observation: CrafterView) -> float:
        return float(sum(count > 0 for count in observation.achievements.values()))

    def status_fields(self, observation: CrafterView) -> dict[str, Any]:
        return {
            "inventory": dict(observation.inventory),
            "achievements": dict(observation.achievements),
            "achievements_status": {name: count > 0 for name, count in observation.achievements.items()},
        }

    def baselines(self, options: CrafterOptions) -> Mapping[str, AgentFactory]:
        return {
            "random": lambda seed: RandomAgent(options, seed),
            "expert": lambda seed: ExpertAgent(options, seed),
            "planner": lambda seed: Planner(options, seed),
        }

    def installation(self) -> dict[str, str]:
        name, why = which_engine()
        return {"crafter engine": f"{name} ({why})"}

    def seed_info(self, seed: int, options: CrafterOptions) -> dict[str, Any]:
        env = CrafterEnv(max_steps=options.max_steps, night_draws=options.night_draws)
        env.reset(seed)
        return env.survey()

    def picture(self, env: Environment) -> Picture | None:
        from task_app.apps.crafter.render import picture, png_bytes  # the one module that needs Pillow

        if not isinstance(env, CrafterEnv):
            raise EnvError(f"a {type(env).__name__} is no Crafter world")
        return Picture("image/png", png_bytes(picture(env.canonical_bytes(), size=PICTURE_SIZE)))

    def grammar(self, options: CrafterOptions) -> Grammar:
        return tool.grammar(options)

    def vocabulary(self, options: CrafterOptions) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*text.VOCABULARY, *self.grammar(options).words)))

    def words_to_message(self, words: Sequence[str]) -> AssistantMessage:
        return tool.words_to_message(words)

    def message_to_words(self, message: AssistantMessage, options: CrafterOptions) -> tuple[str, ...] | ParseFailure:
        return tool.message_to_words(message, options)
