"""The native engine: the game in C (`_native.c`, `csrc/`), behind the protocol; and many games in one call.

Hands the rules' numbers, the daylight and our exception to the extension, and finds out whether it can be
used: it may be missing (no compiler at installation) or older than the C files beside it. Decides no rule.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from task_app.apps.crafter.engine import rules
from task_app.apps.crafter.engine.protocol import (
    MAX_SEED,
    EngineView,
    NightDraws,
    decode_state,
    hash_state,
    unseal,
    world_seed,
)
from task_app.core.errors import EnvError

__all__ = ["NativeBatch", "NativeEngine", "available"]

try:
    from task_app.apps.crafter.engine import _native as _extension  # pyright: ignore[reportAttributeAccessIssue]

    _import_error = ""
except ImportError as error:
    _extension, _import_error = None, str(error)

_FOLDER = Path(__file__).parent


def available() -> str:
    """Why the native engine cannot be used; empty when it can."""
    return _reason


def source_hash(folder: Path = _FOLDER) -> str:
    """A hash of the C files beside this module, empty when there are none. `setup.py` compiles the same in."""
    files = [folder / "_native.c", *sorted((folder / "csrc").glob("*.h"))]
    if not files[0].exists():
        return ""
    return sha256(b"\0".join(path.read_bytes().replace(b"\r\n", b"\n") for path in files)).hexdigest()


def problem(extension: ModuleType | None, import_error: str, sources: str) -> str:
    """Why this extension cannot be used: missing, older than its sources, or made for other rules; else empty."""
    if extension is None:
        return f"the extension is not built: {import_error}"
    if sources and sources != extension.SOURCE_HASH:
        return "the extension is older than the C files beside it: install the package again"
    for name in ("MATERIALS", "ITEMS", "ACTIONS", "ACHIEVEMENTS"):
        if getattr(extension, name) != getattr(rules, name):
            return f"the extension was written for other {name.lower()} than the crafter package's"
    return ""


def rules_table() -> array[int]:
    """The rules in the layout of `Rules` in csrc/world.h."""
    table = array("i", (*rules.ITEM_MAX, *rules.ITEM_INITIAL, _mask(rules.WALKABLE)))
    for material in range(len(rules.MATERIALS) + 1):
        info = rules.COLLECT.get(material)
        if info is None:
            table.extend([0] * (5 + len(rules.ITEMS)))
            continue
        ((item, amount),), (achievement,) = info.receive, info.achievements
        table.extend((1, info.leaves, item, amount, achievement, *_by_item(info.require)))
    for place in (rules.PLACE[action] for action in sorted(rules.PLACE)):
        table.extend((_mask(place.where), place.material or 0, place.achievement, *_by_item(place.uses)))
    for make in (rules.MAKE[action] for action in sorted(rules.MAKE)):
        table.extend((_mask(make.nearby), make.item, make.gives, make.achievement, *_by_item(make.uses)))
    return table


def _mask(materials: Sequence[int] | frozenset[int]) -> int:
    return sum(1 << material for material in materials)


def _by_item(amounts: rules.Amounts) -> list[int]:
    found = dict(amounts)
    return [found.get(item, 0) for item in range(len(rules.ITEMS))]


def _probabilities() -> bytes:
    materials = range(len(rules.MATERIALS) + 1)
    return np.array([rules.COLLECT[m].probability if m in rules.COLLECT else 0 for m in materials], float).tobytes()


def _daylight() -> bytes:
    return np.array(rules.daylight(), float).tobytes()


_reason = problem(_extension, _import_error, source_hash())
if not _reason:
    cast(ModuleType, _extension).configure(rules_table(), _probabilities(), _daylight, EnvError)

if TYPE_CHECKING:
    _World: Any = object
    _Batch: Any = object
elif _reason:

    class _Missing:
        def __new__(cls, *_: Any, **__: Any) -> Any:
            raise EnvError(f"the native Crafter engine cannot be used: {_reason}")

    _World = _Batch = _Missing
else:
    _World, _Batch = _extension.World, _extension.Batch


def _check_night(night_draws: str) -> bool:
    if night_draws not in ("stock", "none"):
        raise EnvError(f"night_draws must be 'stock' or 'none', got {night_draws!r}")
    return night_draws == "stock"


def _check_seed(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < MAX_SEED:
        raise EnvError(f"seed must be an integer from 0 to {MAX_SEED - 1}, got {seed!r}")
    return world_seed(int(seed))


class NativeEngine(_World):
    """One world of ordered Crafter in C. See `protocol.Engine`; the methods not here are the extension's own."""

    __slots__ = ("night_draws",)
    name = "native"
    night_draws: NightDraws

    if TYPE_CHECKING:
        step: Callable[[int], tuple[float, bool, tuple[int, ...]]]
        step_many: Callable[[Sequence[int]], list[tuple[float, bool, tuple[int, ...]]]]
        snapshot: Callable[[], bytes]
        canonical_bytes: Callable[[], bytes]
        load: Callable[[bytes], None]

    def __new__(cls, night_draws: NightDraws = "stock") -> NativeEngine:
        self = super().__new__(cls, night_draws=_check_night(night_draws))
        self.night_draws = night_draws
        return self

    def reset(self, seed: int) -> None:
        self.generate(_check_seed(seed))

    def restore(self, payload: bytes) -> None:
        try:
            self._restore(payload)
        except EnvError:
            if isinstance(payload, bytes):
                unseal(self.name, self.night_draws, payload)  # a seal that is wrong has a better explanation
            raise

    def canonical_state(self) -> dict[str, Any]:
        return decode_state(self.canonical_bytes())

    def state_hash(self) -> str:
        return hash_state(self.canonical_bytes())

    def view(self) -> EngineView:
        return EngineView._make(self._view())


class NativeBatch(_Batch):
    """Many worlds of ordered Crafter that step in one call. Worlds are numbered from 0.

    `rewards` (float64), `dead` (bool) and `events` (uint32, bit a set when achievement a rose) are the arrays that
    `step` fills and returns: the same three each time. A world whose player died, or that reached the last
    step, rests: reward 0, no events, until it is reset or restored.
    """

    __slots__ = ("count", "dead", "events", "night_draws", "rewards")
    name = "native"
    night_draws: NightDraws

    if TYPE_CHECKING:
        snapshot: Callable[[int], bytes]
        canonical_bytes: Callable[[int], bytes]

    def __new__(cls, count: int, night_draws: NightDraws = "stock") -> NativeBatch:
        self = super().__new__(cls, count, _check_night(night_draws))
        self.count = count
        self.night_draws = night_draws
        self.rewards = np.zeros(count, np.float64)
        self.dead = np.zeros(count, np.bool_)
        self.events = np.zeros(count, np.uint32)
        return self

    def reset(self, seeds: Sequence[int]) -> None:
        """Make one world of each seed."""
        if len(seeds) != self.count:
            raise EnvError(f"{self.count} seeds are needed, one a world; got {len(seeds)}")
        for world, seed in enumerate([_check_seed(seed) for seed in seeds]):
            self.generate(world, seed)

    def step(self, actions: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
        """Run one action (uint8) in every world: (rewards, dead, events). Misuse is refused before any world moves."""
        self._step(actions, self.rewards, self.dead, self.events)
        return self.rewards, self.dead, self.events

    def restore(self, world: int, payload: bytes) -> None:
        """Put a snapshot, of this batch or of a NativeEngine with the same night_draws, into a world."""
        try:
            self._restore(world, payload)
        except EnvError:
            if isinstance(payload, bytes):
                unseal(self.name, self.night_draws, payload)
            raise

    def view(self, world: int) -> EngineView:
        return EngineView._make(self._view(world))
