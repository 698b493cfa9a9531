"""How long the observation text of a decision takes, and how many words it has, over expert play.

    python benchmarks/text.py

Plays first and renders afterwards, so that the text alone is timed. Prints the median beside one step of
the environment (view included) as the named baseline, and the words' 5th, 50th and 95th percentile.
Target: a median of at most 60 µs.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from task_app.apps.crafter import APP
from task_app.apps.crafter.expert import ExpertAgent
from task_app.apps.crafter.options import CrafterOptions
from task_app.core.task import TurnContext
from task_app.core.types import PastDecision

SEEDS, DECISIONS = range(20), 20
OPTIONS = CrafterOptions()

Moment = tuple[Any, Sequence[PastDecision], TurnContext]


def played(seed: int, step_s: list[float]) -> list[Moment]:
    """What is shown at each decision of one expert episode; the steps' seconds are added to `step_s`."""
    env, agent = APP.make_env(OPTIONS), ExpertAgent(OPTIONS, seed)
    view, history, moments = env.reset(seed), [], []
    for turn in range(1, DECISIONS + 1):
        moments.append((view, tuple(history), TurnContext(turn, DECISIONS, {})))
        before, events, actions = view, [], agent.act(view)
        for action in actions:
            start = perf_counter()
            result = env.step(action)
            step_s.append(perf_counter() - start)
            view = result.observation
            events += result.events
            if result.terminated:
                return moments
        history.append(PastDecision(turn, tuple(actions), tuple(events), before, view))
    return moments


def main() -> None:
    step_s: list[float] = []
    moments = [moment for seed in SEEDS for moment in played(seed, step_s)]
    text_s, words = [], []
    for view, history, context in moments:
        start = perf_counter()
        parts = APP.observe(view, history, context, OPTIONS)
        text_s.append(perf_counter() - start)
        words.append(len(parts[0]["text"].split()))
    low, *_, high = quantiles(words, n=20)
    print(f"text {1e6 * median(text_s):.1f} µs (target 60) · step with its view {1e6 * median(step_s):.1f} µs")
    print(f"words: 5 % {low:.0f} · median {median(words):.0f} · 95 % {high:.0f}")


if __name__ == "__main__":
    main()
