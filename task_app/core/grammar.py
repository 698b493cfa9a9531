"""A grammar over words: which words may follow, for constrained decoding.

A task app describes its legal answers as a small deterministic automaton over the words of its own
vocabulary. The sampler walks it to mask illegal words; the trainer replays it over the stored ids
and applies the same mask, so both score the same renormalised policy. Nothing here knows token ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

__all__ = ["Grammar"]


@dataclass(frozen=True)
class Grammar:
    """A deterministic automaton: `edges[state][word]` is the next state; `final` ends the answer.

    Raises ValueError at construction when an edge leads nowhere, a state but `final` has no edge, or
    `final` has one.
    """

    name: str
    start: str
    final: str
    edges: Mapping[str, Mapping[str, str]]

    def __post_init__(self) -> None:
        if self.final in self.edges:
            raise ValueError(f"grammar {self.name}: final state {self.final!r} has a way out")
        for state, options in self.edges.items():
            if not options:
                raise ValueError(f"grammar {self.name}: state {state!r} has no way out")
            for word, target in options.items():
                if target != self.final and target not in self.edges:
                    raise ValueError(f"grammar {self.name}: {state!r} -{word}-> unknown state {target!r}")
        if self.start not in self.edges:
            raise ValueError(f"grammar {self.name}: unknown start state {self.start!r}")

    @cached_property
    def hash(self) -> str:
        """Sixteen hex digits over the whole automaton; stored with every decision sampled under it."""
        canonical = json.dumps(
            [self.name, self.start, self.final, {s: dict(sorted(e.items())) for s, e in sorted(self.edges.items())}]
        )
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Every word the grammar can produce, sorted."""
        return tuple(sorted({word for options in self.edges.values() for word in options}))

    def allowed(self, state: str) -> tuple[str, ...]:
        """The words that may come next in `state`, sorted; empty in the final state."""
        return tuple(sorted(self.edges.get(state, {})))

    def walk(self, words: Sequence[str]) -> Iterator[str]:
        """The state before each word, for replaying an answer. Raises ValueError at an illegal word."""
        state = self.start
        for index, word in enumerate(words):
            yield state
            options = self.edges.get(state, {})
            if word not in options:
                raise ValueError(f"grammar {self.name}: word {index} {word!r} is not allowed in state {state!r}")
            state = options[word]
