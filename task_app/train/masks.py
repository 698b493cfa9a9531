"""A grammar as tables over token ids: which tokens are legal in each state, and where they lead.

Sampler and trainer use the same tables, so that both score the same renormalised policy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from task_app.core.errors import TrainError
from task_app.core.grammar import Grammar
from task_app.train.tokenizer import PAD, WordTokenizer

__all__ = ["GrammarTable"]


class GrammarTable:
    """Tables of one grammar. States are numbered; the last number is the final state.

    next_S_V     the state after a token, -1 where it is illegal
    allowed_S_V  True where a token is legal; the final state allows padding alone, so that no row of
                 a softmax is empty
    forced_S     the token where there is one choice, else -1
    tails        per state, the tokens up to the end when every one of them is forced, else None
    longest      tokens of the longest answer
    """

    def __init__(self, grammar: Grammar, tokenizer: WordTokenizer, device: torch.device | str = "cpu") -> None:
        """Raises TrainError for a word outside the vocabulary and for a grammar with a loop."""
        self.hash = grammar.hash
        self.tokenizer = tokenizer
        names = [*grammar.edges, grammar.final]
        number = {name: index for index, name in enumerate(names)}
        self.start, self.final = number[grammar.start], number[grammar.final]
        self.next_S_V = np.full((len(names), len(tokenizer)), -1, np.int64)
        for name, options in grammar.edges.items():
            for word, target in options.items():
                self.next_S_V[number[name], tokenizer.id(word)] = number[target]
        legal_S_V = self.next_S_V >= 0
        self.forced_S = np.where(legal_S_V.sum(1) == 1, legal_S_V.argmax(1), -1)
        self.forced_S[self.final] = -1
        legal_S_V[self.final, tokenizer.id(PAD)] = True
        self.allowed_S_V = torch.from_numpy(legal_S_V).to(device)
        self.longest = self._longest(grammar.name)
        self.tails: list[tuple[int, ...] | None] = [self._tail(state) for state in range(len(names))]

    def states(self, ids: Sequence[int]) -> list[int]:
        """The state before each token of a whole answer. Raises TrainError when it is not legal to its end."""
        state, before = self.start, []
        for position, token in enumerate(ids):
            before.append(state)
            state = int(self.next_S_V[state, token]) if 0 <= token < self.next_S_V.shape[1] else -1
            if state < 0:
                raise TrainError(f"token {token} at position {position} of a stored answer is illegal in its grammar")
        if state != self.final:
            raise TrainError(f"a stored answer of {len(ids)} tokens stops before its grammar's end")
        return before

    def _tail(self, state: int) -> tuple[int, ...] | None:
        tokens: list[int] = []
        while state != self.final:
            token = int(self.forced_S[state])
            if token < 0:
                return None
            tokens.append(token)
            state = int(self.next_S_V[state, token])
        return tuple(tokens)

    def _longest(self, name: str) -> int:
        """Most tokens from the start to the end; every step must move on, or sampling may never stop."""
        reached, length = {self.start}, 0
        while reached - {self.final}:
            length += 1
            if length > len(self.next_S_V):
                raise TrainError(f"grammar {name} has a loop: the embedded policy needs answers of bounded length")
            reached = {int(target) for state in reached for target in self.next_S_V[state] if target >= 0}
        return length
