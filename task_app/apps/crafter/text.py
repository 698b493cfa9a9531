"""The view as words: one renderer for models, SFT data, RL and evaluation.

About 40–80 words, one topic a line, made only of the words in `VOCABULARY`, so that a word-level
tokenizer reads it without loss. Commas and colons are for people; they carry no meaning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import groupby

from task_app.apps.crafter.landmarks import remembered
from task_app.apps.crafter.rules import ACHIEVEMENTS, ACTIONS, INVENTORY, MATERIALS, VITALS
from task_app.apps.crafter.view import OFFSETS, CrafterView
from task_app.core.task import TurnContext
from task_app.core.types import ParseFailure, PastDecision

__all__ = ["RENDERER_VERSION", "VOCABULARY", "render"]

RENDERER_VERSION = "crafter-text/2"

FAILURES: tuple[str, ...] = (
    "cut_off",
    "no_tool_call",
    "many_tool_calls",
    "unknown_tool",
    "bad_json",
    "bad_arguments",
    "unknown_action",
    "too_few_actions",
    "too_many_actions",
)

_CREATURES = ("cow", "zombie", "skeleton", "arrow", "plant", "ripe_plant")
_GROUND = ("grass", "sand", "path")
_SIDES: Mapping[str, tuple[int, int]] = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
_BRIGHT, _DIM = 0.6, 0.3

_Place = tuple[int, int, int]
"""How far away, x, y."""
_PLACES: tuple[_Place, ...] = tuple(sorted((abs(x) + abs(y), x, y) for x, y in OFFSETS if (x, y) != (0, 0)))
_INDEXES: tuple[int, ...] = tuple(OFFSETS.index(place[1:]) for place in _PLACES)
"""The tiles of a view and where they stand in `CrafterView.materials`, nearest first."""
_LABELS = (  # noqa: SIM905 - one sentence is easier to read than thirty items
    "decisions left vitals sky bright dim dark awake asleep facing around near have done last moved "
    "nothing none remembered unreadable edge right up down here -> … health food drink energy"
).split()

VOCABULARY: tuple[str, ...] = tuple(
    dict.fromkeys(
        [*_LABELS, *VITALS, *INVENTORY, *MATERIALS, *_CREATURES, *ACTIONS, *ACHIEVEMENTS, *FAILURES]
        + [str(number) for number in range(100)]
        + [f"-{number}" for number in range(1, 10)]
        + [f"+{number}" for number in range(1, 10)]
    )
)
"""Every word a rendered observation can hold; numbers of three digits and more are read digit by digit."""


def render(
    view: CrafterView, history: Sequence[PastDecision], context: TurnContext, *, history_calls: int, history_clip: int
) -> str:
    """The observation text of one decision."""
    left = context.max_decisions - context.turn + 1
    vitals = " ".join(f"{name} {view.inventory[name]}" for name in VITALS)
    lines = [
        f"decisions left {left}",
        f"vitals: {vitals}",
        f"sky: {_sky(view.daylight)}, {'asleep' if view.sleeping else 'awake'}",
        f"facing: {_side(view.facing)} {view.thing(*view.facing)}",
        "around: " + ", ".join(f"{side} {view.thing(*step)}" for side, step in _SIDES.items()),
        f"near: {_near(view)}",
        *_remembered(view, history),
        f"have: {_listing((name, view.inventory[name]) for name in INVENTORY if view.inventory[name])}",
        f"done: {', '.join(name for name in ACHIEVEMENTS if view.achievements[name]) or 'none'}",
    ]
    recalled = history[-history_calls:] if history_calls else ()
    lines += [f"last: {_clip(_recall(past), history_clip)}" for past in recalled]
    return "\n".join(lines)


def _sky(daylight: float) -> str:
    return "bright" if daylight >= _BRIGHT else "dim" if daylight >= _DIM else "dark"


def _side(direction: tuple[int, int]) -> str:
    return next(side for side, step in _SIDES.items() if step == direction)


def _near(view: CrafterView) -> str:
    """The nearest of each kind as `tree right 2 up 1`; bare ground only when none is adjacent."""
    nearest: dict[str, _Place] = {}
    for material, place in zip(map(view.materials.__getitem__, _INDEXES), _PLACES, strict=True):
        if material not in nearest and material is not None:
            nearest[material] = place
    for thing in view.objects:
        place = (abs(thing.x) + abs(thing.y), thing.x, thing.y)
        if thing.kind not in nearest or place < nearest[thing.kind]:
            nearest[thing.kind] = place
    listed = [
        (place[0], f"{kind} {_where(place[1], place[2])}")
        for kind, place in nearest.items()
        if place[0] > 1 or kind not in _GROUND
    ]
    return ", ".join([words for _, words in sorted(listed)]) or "nothing"


def _remembered(view: CrafterView, history: Sequence[PastDecision]) -> list[str]:
    """The line of what is out of sight, none where nothing is known."""
    places = [f"{kind} {_where(x, y)}" for _, kind, x, y in remembered(view, history)]
    return [f"remembered: {', '.join(places)}"] if places else []


@cache
def _where(x: int, y: int) -> str:
    parts = [f"{'right' if x > 0 else 'left'} {abs(x)}"] if x else []
    parts += [f"{'down' if y > 0 else 'up'} {abs(y)}"] if y else []
    return " ".join(parts) or "here"


def _listing(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts) or "nothing"


def _recall(past: PastDecision) -> str:
    """An earlier call and what it did: `move_left 3 do 2 -> moved left 3, collect_wood 2`."""
    if past.failure is not None:
        return f"unreadable {past.failure.reason}"
    calls = " ".join(f"{name} {len(list(run))}" for name, run in groupby(past.actions))
    return f"{calls} -> {', '.join(_effects(past)) or 'nothing'}"


def _effects(past: PastDecision) -> list[str]:
    before, after = past.before, past.after
    x, y = (after.offset[axis] - before.offset[axis] for axis in (0, 1))
    moved = [f"moved {_where(x, y)}"] if (x, y) != (0, 0) else []
    events = [f"{name} {count}" for name, count in sorted(Counter(past.events).items())]
    changes = [(name, after.inventory[name] - before.inventory[name]) for name in VITALS]
    return moved + events + [f"{name} {change:+d}" for name, change in changes if change]


def _clip(words: str, limit: int) -> str:
    """`words` cut at a word boundary to at most `limit` characters, then ` …`."""
    if len(words) <= limit:
        return words
    return words[: limit + 1].rsplit(" ", 1)[0] + " …" if " " in words[: limit + 1] else "…"


def failure(reason: str, detail: str) -> ParseFailure:
    """A parse failure with one of this app's codes, so that its reason is always a known word."""
    assert reason in FAILURES, reason
    return ParseFailure(reason, detail)
